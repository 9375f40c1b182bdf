// @ts-check
/** Lyrics and songs: main fields, expectations of a model, and the step from lyrics to a song. */

import { bytes } from "./format.js";

/** @typedef {import("./types.js").Model} Model @typedef {import("./types.js").Schema} Schema @typedef {import("./types.js").Job} Job */

const IN_FRONT = { lyrics: ["theme", "style", "language", "sections", "lines_per_section"], music: ["lyrics", "language", "seconds", "variations"] };
const SMALL_BYTES = 500_000_000;

/** @param {Model|undefined} model @param {string} task @returns {Schema|undefined} its options for a task */
export const schemaOf = (model, task) => model?.options_schemas?.[task] ?? model?.options_schema;

/** Whether a model generates sound directly; tunes are composed as notes. @param {Model|undefined} model */
export const makesSongs = (model) => model?.task === "music" && !("abc" in (model.options_schema.properties ?? {}));

/** @param {Model|undefined} model */
const sings = (model) => makesSongs(model) && "lyrics" in (model?.options_schema.properties ?? {});

/** Return the main options and those under "Options". @param {Model|undefined} model @param {string} task */
export function partedSchema(model, task) {
  const all = Object.entries(schemaOf(model, task)?.properties ?? {});
  const names = task === "lyrics" ? IN_FRONT.lyrics : makesSongs(model) ? IN_FRONT.music : [];
  const within = (/** @type {boolean} */ front) => ({ properties: Object.fromEntries(all.filter(([name]) => names.includes(name) === front)) });
  return { front: within(true), rest: within(false) };
}

/** Return what to expect from a model. @param {string} task @param {Model|undefined} model @returns {string} */
export function expectation(task, model) {
  if (!model) return "";
  if (task === "music") return sings(model) ? "It sings the text in Lyrics; without lyrics it is instrumental." : "It is instrumental and does not take lyrics.";
  if (!["text", "lyrics"].includes(task) || !model.bytes || model.bytes > SMALL_BYTES) return "";
  return task === "lyrics"
    ? "A small model: fluent English lines that seldom rhyme and may lose the theme; other languages are gibberish."
    : "A test model: it shows that a device works. It writes short fluent English; its facts are often wrong.";
}

/** Return the conditions to show before a download. @param {Model} model @returns {string} */
export function conditions({ details = {} }) {
  return [
    details.non_commercial && "NOT for commercial use.",
    details.licence_terms && `${details.licence_terms}.`,
    details.gated && "Accept its terms at Hugging Face first.",
    details.memory?.length && `Card memory according to its authors: ${details.memory.map((need) => `${bytes(need.bytes)} (${need.setting})`).join(", ")}.`,
  ].filter(Boolean).join(" ");
}

/** Return the form values of a song with these lyrics. @param {Job} job @param {Model[]} models */
export function songOf(job, models) {
  const { theme, style, language } = job.request.options;
  const able = models.filter(sings), model = able.find(({ state }) => state === "ready") ?? able[0];
  const code = codeOf(language ?? "");
  return {
    task: "music", model: model?.id ?? "", prompt: [style ?? "song", theme && `about ${theme}`].filter(Boolean).join(" "),
    options: { lyrics: job.output.text ?? "", ...(code && code !== "en" && { language: code }) },
  };
}

/** Return the code of a language's English name; empty if unknown. @param {string} name */
function codeOf(name) {
  if (/^[a-z]{2,3}$/.test(name)) return name;
  const names = new Intl.DisplayNames("en", { type: "language", fallback: "none" }), letters = [..."abcdefghijklmnopqrstuvwxyz"];
  return letters.flatMap((first) => letters.map((second) => first + second))
    .find((code) => names.of(code)?.toLowerCase() === name.trim().toLowerCase()) ?? "";
}
