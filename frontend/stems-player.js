// @ts-check
/** A player for all stems of a sound: one button and one position, with mute and solo for each. */

import { el } from "./dom.js";
import { bytes, capital } from "./format.js";
import { waveform } from "./waveform.js";

/** @typedef {import("./types.js").Artifact} Artifact */
/** @typedef {{artifact: Artifact, player: HTMLAudioElement, mute: HTMLElement, solo: HTMLElement}} Track */

const LOOK_MS = 200, JUMP_S = 0.25, MOST_RATE = 0.05;

const clock = (/** @type {number} */ s) => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`;

export class StemsPlayer {
  /** @type {Track[]} */
  #tracks = [];
  #moving = 0; // players that are seeking to the common position
  #timer = 0;
  #button = el("button", { type: "button", click: () => this.#toggle() }, "Play");
  #place = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: "0", max: "0", step: "0.01", value: "0", "aria-label": "Position",
    input: () => this.#seek(Number(this.#place.value)) }));
  #time = el("span", { class: "quiet" }, "0:00");
  #rows = el("ul", { class: "stems" });

  /** @param {HTMLElement} root */
  constructor(root) {
    root.append(el("section", { class: "made", "aria-label": "Stems" },
      el("div", { class: "transport" }, this.#button, this.#place, this.#time), this.#rows,
      el("div", { class: "actions" }, el("button", { type: "button", click: () => this.#downloadAll() }, "Download all"))));
  }

  /** @param {Artifact} artifact */
  add(artifact) {
    const name = artifact.name.replace(/\.[^.]*$/, ""), of = el("span", { class: "unseen" }, ` ${name}`);
    const player = /** @type {HTMLAudioElement} */ (el("audio", { preload: "auto", src: artifact.url }));
    player.preservesPitch = false; // small rate changes must not use a time stretcher
    const press = (/** @type {string} */ word) => el("button", { type: "button", class: "small", "aria-pressed": "false", click: (event) => {
      const button = /** @type {HTMLElement} */ (event.currentTarget);
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      this.#hear();
    } }, word, of.cloneNode(true));
    const track = { artifact, player, mute: press("Mute"), solo: press("Solo") };
    this.#tracks.push(track);
    player.addEventListener("loadedmetadata", () => { this.#place.max = String(player.duration); this.#tell(); });
    player.addEventListener("seeking", () => { if (!this.#moving) this.#seek(player.currentTime); }); // from its waveform
    player.addEventListener("seeked", () => { this.#moving = Math.max(0, this.#moving - 1); this.#tell(); });
    player.addEventListener("ended", () => this.#pause());
    this.#rows.append(el("li", { "aria-label": capital(name) },
      el("div", { class: "line" }, el("strong", {}, capital(name)), el("span", { class: "pair" }, track.mute, track.solo)),
      player, waveform(player, artifact),
      el("a", { href: artifact.url, download: artifact.name }, artifact.name, el("span", { class: "quiet" }, ` ${bytes(artifact.bytes)}`))));
    this.#hear();
  }

  close() { this.#pause(); }

  get #first() { return this.#tracks[0].player; }

  /** Apply mute and solo: the solo stems if any, else all that are not muted. */
  #hear() {
    const on = (/** @type {HTMLElement} */ button) => button.getAttribute("aria-pressed") === "true";
    const alone = this.#tracks.some(({ solo }) => on(solo));
    for (const { player, mute, solo } of this.#tracks) player.muted = alone ? !on(solo) : on(mute);
  }

  async #toggle() {
    if (!this.#first.paused) return this.#pause();
    if (this.#first.ended) this.#seek(0);
    for (const { player } of this.#tracks.slice(1)) player.currentTime = this.#first.currentTime;
    this.#moving = this.#tracks.length - 1;
    this.#button.textContent = "Pause";
    try { await Promise.all(this.#tracks.map(({ player }) => player.play())); } catch { return this.#pause(); }
    this.#timer = window.setInterval(() => this.#keepTogether(), LOOK_MS);
  }

  #pause() {
    clearInterval(this.#timer);
    for (const { player } of this.#tracks) player.pause();
    this.#button.textContent = "Play";
    this.#tell();
  }

  /** @param {number} at seconds */
  #seek(at) {
    this.#moving = this.#tracks.length;
    for (const { player } of this.#tracks) player.currentTime = at;
  }

  /** Keep the others in step with the first: by small rate changes, and by a jump if they are far off. */
  #keepTogether() {
    for (const { player } of this.#tracks.slice(1)) {
      const behind = this.#first.currentTime - player.currentTime;
      if (Math.abs(behind) > JUMP_S) { this.#moving += 1; player.currentTime = this.#first.currentTime; }
      player.playbackRate = 1 + Math.max(-MOST_RATE, Math.min(MOST_RATE, behind));
    }
    this.#tell();
  }

  #tell() {
    const { currentTime, duration } = this.#first;
    this.#place.value = String(currentTime);
    this.#time.textContent = `${clock(currentTime)} of ${clock(duration || 0)}`;
    this.#place.setAttribute("aria-valuetext", this.#time.textContent);
  }

  #downloadAll() {
    for (const link of this.#rows.querySelectorAll("a")) link.click();
  }
}
