// @ts-check
/** Search of Hugging Face: a field, the models found, and a download button for each file. */

import * as api from "./api.js";
import { byId, el, foreign, prose } from "./dom.js";
import { bytes, fitWords, plural, sentence } from "./format.js";
import { act } from "./hardware.js";

/** @typedef {import("./types.js").Found} Found @typedef {import("./types.js").FoundFile} FoundFile */

const form = byId("model-search", HTMLFormElement), words = byId("model-words", HTMLInputElement), list = byId("found", HTMLElement);
const said = byId("search-said", HTMLElement);
/** Number of the last search; an answer to an earlier one is ignored. */
let searches = 0;

/** @param {(source: string) => Promise<void>} add downloads a file */
export function setUpModelSearch(add) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const asked = words.value.trim(), number = searches += 1;
    if (!asked) return;
    said.textContent = `Searching for ${asked}…`;
    try {
      const { results } = await api.searchModels(asked);
      if (number !== searches) return;
      list.replaceChildren(...results.map((found) => entry(found, add)));
      said.textContent = results.length ? `${plural(results.length, "repository").replace("repositorys", "repositories")} found.` : "Nothing was found. Use fewer words.";
    } catch (error) {
      if (number !== searches) return;
      const { detail, remedy } = api.asProblem(error);
      list.replaceChildren();
      said.replaceChildren(prose([detail, remedy ?? ""].map(sentence).join(" ")));
    }
  });
}

/** @param {Found} found @param {(source: string) => Promise<void>} add */
function entry(found, add) {
  const { author, name, downloads, likes, licence, updated_at: updated, gated, page, reason, files } = found;
  const facts = [downloads != null && `${short(downloads)} downloads`, likes != null && `${short(likes)} likes`, licence ?? "licence unknown", updated && `updated ${updated.slice(0, 10)}`];
  return el("li", {}, el("p", {}, el("strong", {}, foreign(`${author}/${name}`))), el("p", { class: "quiet", dir: "auto" }, facts.filter(Boolean).join(" · ")),
    gated && el("p", { class: "hint" }, "Its licence has to be accepted first: ", el("a", { href: page, rel: "noopener noreferrer" }, page), ". Then set HF_TOKEN for the server."),
    reason && el("p", { class: "hint" }, reason),
    files.length > 0 && el("details", {}, el("summary", {}, plural(files.length, "file"), el("span", { class: "unseen" }, ` of ${name}`)),
      el("ul", { class: "models" }, ...files.map((file) => fileEntry(file, add)))));
}

/** @param {FoundFile} file @param {(source: string) => Promise<void>} add */
function fileEntry(file, add) {
  const best = fitWords(file.fits);
  return el("li", {}, el("p", {}, [file.quantization, bytes(file.bytes), best?.words ?? "fit unknown"].filter(Boolean).join(" · ")),
    el("p", { class: "quiet" }, foreign(file.name), file.parts > 1 ? ` (${file.parts} parts)` : "", best ? `: ${best.reason}` : ""),
    el("div", { class: "actions" }, act("Download", () => add(file.source), file.name)));
}

/** @param {number} count */
const short = (count) => new Intl.NumberFormat("en", { notation: "compact" }).format(count);
