// @ts-check
/** Syllables and rhymes of lyrics, folded; and the lyrics beside a song. */

import { byId, el, foreign } from "./dom.js";

const box = byId("sounds-box", HTMLDetailsElement), body = byId("sounds", HTMLElement), said = byId("sounds-said", HTMLElement);
const words = byId("words", HTMLElement), sing = byId("sing", HTMLButtonElement);

/** @param {import("./types.js").Job|null} job null until one has ended */
export function showSounds(job) {
  const lyrics = job?.output.lyrics;
  box.hidden = sing.hidden = !lyrics?.sections.length;
  if (!lyrics) return;
  said.textContent = lyrics.sounds ? `Looked up in ${lyrics.sounds}. Lines of a section with the same letter rhyme; ? means a word that is not in it.`
    : `There is no pronunciation dictionary for ${lyrics.language}, so syllables and rhymes are unknown.`;
  body.replaceChildren(...lyrics.sections.map((section) => el("table", { class: "rows sounds" },
    el("caption", {}, section.label, el("span", { class: "quiet" }, section.rhyme_scheme ? ` ${section.rhyme_scheme}` : "")),
    el("thead", { class: "unseen" }, el("tr", {}, ...["Line", "Syllables", "Rhyme"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...section.lines.map((line) => el("tr", {}, el("td", {}, foreign(line.text)),
      el("td", {}, line.syllables == null ? "–" : String(line.syllables)), el("td", {}, line.rhyme ?? "–")))))));
}

/** @param {import("./types.js").Job} job */
export function showWords({ task, request }) {
  const sung = task === "music" ? request.options?.lyrics : null;
  words.hidden = !sung;
  words.textContent = sung ?? "";
}
