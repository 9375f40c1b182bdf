// @ts-check
/** Growing text: a bounded piece per frame, in bounded blocks, so that the cost per token is constant. */

const FRAME_CHARS = 3000;
const LINES_CHARS = 1000;
const PARAGRAPH_CHARS = 3000;
const NEAR_END_PX = 48;
const HIDDEN_TAB_MS = 50;

export class Transcript {
  #waiting = "";
  #frame = 0;
  #timer = 0;
  #blockChars = 0;
  /** @type {HTMLElement|null} */
  #block = null;
  /** @type {(() => void)[]} */
  #drained = [];

  /** @param {HTMLElement} root @param {() => void} onGrow called once per frame in which text was added */
  constructor(root, onGrow) {
    this.root = root;
    this.onGrow = onGrow;
  }

  /** @param {string} text */
  append(text) {
    this.#waiting += text;
    this.#schedule();
  }

  clear() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = this.#blockChars = 0;
    this.#waiting = "";
    this.#block = null;
    this.#drained = [];
    this.root.replaceChildren();
  }

  /** Call `then` once all text is shown; never after `clear`. @param {() => void} then */
  whenShown(then) {
    if (this.#waiting) this.#drained.push(then);
    else then();
  }

  #schedule() {
    if (!this.#waiting || this.#frame || this.#timer) return;
    if (document.hidden) this.#timer = window.setTimeout(() => this.#show(), HIDDEN_TAB_MS); // hidden tabs have no frames
    else this.#frame = requestAnimationFrame(() => this.#show());
  }

  #show() {
    this.#frame = this.#timer = 0;
    const atEnd = this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < NEAR_END_PX;
    let end = Math.min(FRAME_CHARS, this.#waiting.length);
    if (/[\uD800-\uDBFF]/.test(this.#waiting.charAt(end - 1)) && end < this.#waiting.length) end += 1;
    this.#add(this.#waiting.slice(0, end));
    this.#waiting = this.#waiting.slice(end);
    if (atEnd) this.root.scrollTop = this.root.scrollHeight;
    this.onGrow();
    this.#schedule();
    if (!this.#waiting) for (const then of this.#drained.splice(0)) then();
  }

  /**
   * A block ends where a line ends, which the eye cannot tell; a paragraph of thousands of characters ends a line early,
   * at a space. Together the blocks hold the text unchanged.
   * @param {string} text
   */
  #add(text) {
    let chunk = "";
    for (const word of text.match(/[^\s]*(?:\s|$)/g) ?? []) {
      chunk += word;
      const chars = this.#blockChars + chunk.length;
      if (chars < LINES_CHARS || !(word.endsWith("\n") || (chars > PARAGRAPH_CHARS && word.endsWith(" ")))) continue;
      this.#put(chunk);
      this.#block = null;
      this.#blockChars = 0;
      chunk = "";
    }
    if (chunk) this.#put(chunk);
  }

  /** @param {string} text */
  #put(text) {
    if (!this.#block) {
      this.#block = document.createElement("div");
      this.root.append(this.#block);
    }
    this.#block.append(text);
    this.#blockChars += text.length;
  }
}
