// @ts-check
/** Text that grows: one append per frame, in blocks, so that the cost of a token does not grow with the text. */

const BLOCK_CHARS = 1500;
const NEAR_END_PX = 48;

export class Transcript {
  /** @type {string[]} */
  #waiting = [];
  #frame = 0;
  #blockChars = 0;
  /** @type {HTMLElement|null} */
  #block = null;

  /** @param {HTMLElement} root @param {() => void} onGrow called once per frame in which text was added */
  constructor(root, onGrow) {
    this.root = root;
    this.onGrow = onGrow;
  }

  /** @param {string} text */
  append(text) {
    this.#waiting.push(text);
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  clear() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#waiting = [];
    this.#block = null;
    this.root.replaceChildren();
  }

  /** Shows what waits, at once: a hidden tab has no frames. */
  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.#waiting.length) return;
    const atEnd = this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < NEAR_END_PX;
    const text = this.#waiting.join("");
    this.#waiting = [];
    // A new block begins after a line's end alone, where the eye cannot tell; together they hold the text unchanged.
    const lines = text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
    let chunk = "";
    for (const line of lines) {
      chunk += line;
      if (line.endsWith("\n") && this.#blockChars + chunk.length > BLOCK_CHARS) {
        this.#add(chunk);
        this.#block = null;
        chunk = "";
      }
    }
    if (chunk) this.#add(chunk);
    if (atEnd) this.root.scrollTop = this.root.scrollHeight;
    this.onGrow();
  }

  /** @param {string} text */
  #add(text) {
    if (!this.#block) {
      this.#block = document.createElement("div");
      this.#blockChars = 0;
      this.root.append(this.#block);
    }
    this.#block.append(text);
    this.#blockChars += text.length;
  }
}
