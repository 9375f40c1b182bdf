// @ts-check
/** The files of a job by kind: audio, images and text are shown, and all can be downloaded. */

import * as api from "./api.js";
import { copy, el } from "./dom.js";
import { bytes } from "./format.js";
import { StemsPlayer } from "./stems-player.js";
import { waveform } from "./waveform.js";

/** @typedef {import("./types.js").Artifact} Artifact */

/** @type {Record<string, (artifact: Artifact) => HTMLElement>} */
const KINDS = { audio: heard, image: seen, text: read };

export class ArtifactsView {
  /** @type {Map<string, {section: HTMLElement, shown: HTMLElement, links: HTMLElement, heard: boolean}>} */
  #groups = new Map();
  /** @type {Set<string>} */
  #names = new Set();
  /** @type {StemsPlayer|null} */
  #stems = null;
  /** Whether the files are parts of one sound. */
  together = false;

  /** @param {HTMLElement} root */
  constructor(root) { this.root = root; }

  clear() {
    this.#groups.clear();
    this.#names.clear();
    this.#stems?.close();
    this.#stems = null;
    this.root.replaceChildren();
    this.root.hidden = true;
  }

  /** @param {Artifact} artifact shown once, also if it is reported twice */
  add(artifact) {
    if (this.#names.has(artifact.name)) return;
    this.#names.add(artifact.name);
    if (this.together) {
      this.root.hidden = false;
      this.#stems ??= new StemsPlayer(this.root);
      this.#stems.add(artifact);
      return;
    }
    const group = this.#group(artifact.name.replace(/\.[^.]*$/, ""));
    const kind = artifact.media_type.split("/")[0];
    const show = KINDS[kind];
    if (show && !(kind === "audio" && (group.heard || !playable(artifact.media_type)))) {
      group.heard ||= kind === "audio"; // one player per group
      const rank = Object.keys(KINDS).indexOf(kind), element = show(artifact);
      element.dataset.rank = String(rank);
      const after = [...group.shown.children].find((one) => Number(/** @type {HTMLElement} */ (one).dataset.rank) > rank);
      group.shown.insertBefore(element, after ?? null);
    }
    group.links.append(el("li", {}, el("a", { href: artifact.url, download: artifact.name }, artifact.name,
      el("span", { class: "quiet" }, ` ${bytes(artifact.bytes)}`))));
    this.root.hidden = false;
  }

  /** @param {string} stem files of the same name belong together */
  #group(stem) {
    const found = this.#groups.get(stem);
    if (found) return found;
    const shown = el("div", { class: "shown" }), links = el("ul", { class: "downloads", "aria-label": `Downloads of ${stem}` });
    const number = /-(\d+)$/.exec(stem)?.[1];
    const title = number ? el("h3", {}, `Variation ${number}`) : null;
    const section = el("section", { class: "made", "aria-label": number ? `Variation ${number}` : stem }, title, shown, links);
    const group = { section, shown, links, heard: false };
    this.#groups.set(stem, group);
    this.root.append(section);
    return group;
  }
}

const playable = (/** @type {string} */ type) => document.createElement("audio").canPlayType(type) !== "";

/** @param {Artifact} artifact */
function heard(artifact) {
  const { url, name } = artifact;
  const player = /** @type {HTMLAudioElement} */ (el("audio", { controls: true, preload: "metadata", src: url, "aria-label": `Play ${name}` }));
  const box = el("div", { class: "player" }, player);
  box.prepend(waveform(player, artifact));
  return box;
}

/** @param {Artifact} artifact */
function seen({ url, name }) {
  return el("div", { class: "sheet", tabindex: "0", role: "region", "aria-label": `Picture ${name}` },
    el("img", { src: url, alt: `The notes of ${name.replace(/\.[^.]*$/, "")} as sheet music; the text below has the same notes` }));
}

/** @param {Artifact} artifact */
function read({ url, name }) {
  const text = el("pre", { tabindex: "0", "aria-label": `Text of ${name}` }, "…");
  const button = el("button", { type: "button", class: "small" }, `Copy ${name}`);
  button.addEventListener("click", () => copy(text.textContent ?? "", button));
  api.text(url).then((words) => { text.textContent = words; },
    (error) => { text.textContent = `${name} could not be read: ${api.asProblem(error).detail}`; });
  return el("details", {}, el("summary", {}, `${name} as text`), text, button);
}
