// @ts-check
/** Songs in words and in sound: which of their fields stand in front, what a model can be hoped to do, and how one leads to the other. */

import { bytes } from "./format.js";

/** @typedef {import("./types.js").Model} Model @typedef {import("./types.js").Schema} Schema @typedef {import("./types.js").Job} Job */

const IN_FRONT = { lyrics: ["theme", "style", "language", "sections", "lines_per_section"], music: ["lyrics", "language", "seconds", "variations"] };
const SMALL_BYTES = 500_000_000;

/** @param {Model|undefined} model @param {string} task @returns {Schema|undefined} the options that it takes for a task */
export const schemaOf = (model, task) => model?.options_schemas?.[task] ?? model?.options_schema;

/** Whether a model makes sound itself; a tune is written as notes first. @param {Model|undefined} model */
export const makesSongs = (model) => model?.task === "music" && !("abc" in (model.options_schema.properties ?? {}));

/** @param {Model|undefined} model */
const sings = (model) => makesSongs(model) && "lyrics" in (model?.options_schema.properties ?? {});

/** What stands before the words, and what stands behind “Options”. @param {Model|undefined} model @param {string} task */
export function partedSchema(model, task) {
  const all = Object.entries(schemaOf(model, task)?.properties ?? {});
  const names = task === "lyrics" ? IN_FRONT.lyrics : makesSongs(model) ? IN_FRONT.music : [];
  const within = (/** @type {boolean} */ front) => ({ properties: Object.fromEntries(all.filter(([name]) => names.includes(name) === front)) });
  return { front: within(true), rest: within(false) };
}

/** What may be hoped for, in plain words. @param {string} task @param {Model|undefined} model @returns {string} */
export function expectation(task, model) {
  if (!model) return "";
  if (task === "music") return sings(model) ? "It sings the words of the field Lyrics; without words it plays." : "It plays and does not sing: it has no place for words.";
  if (!["text", "lyrics"].includes(task) || !model.bytes || model.bytes > SMALL_BYTES) return "";
  return task === "lyrics"
    ? "A small model: lines in fluent English that seldom rhyme and may lose the theme; other languages come out as gibberish."
    : "A small model: good for trying a device. It writes fluent short English, and its facts are often wrong.";
}

/** What should be known before a model is fetched. @param {Model} model @returns {string} */
export function conditions({ details = {} }) {
  return [
    details.non_commercial && "NOT for commercial use.",
    details.gated && "Its makers want their terms accepted at Hugging Face first.",
    details.memory?.length && `Memory of a card, as its makers say: ${details.memory.map((need) => `${bytes(need.bytes)} (${need.setting})`).join(", ")}.`,
  ].filter(Boolean).join(" ");
}

/** The form of a song that sings these words. @param {Job} job @param {Model[]} models */
export function songOf(job, models) {
  const { theme, style, language } = job.request.options;
  const able = models.filter(sings), model = able.find(({ state }) => state === "ready") ?? able[0];
  const code = codeOf(language ?? "");
  return {
    task: "music", model: model?.id ?? "", prompt: [style ?? "song", theme && `about ${theme}`].filter(Boolean).join(" "),
    options: { lyrics: job.output.text ?? "", ...(code && code !== "en" && { language: code }) },
  };
}

/** The code of a language's English name; empty where there is none. @param {string} name */
function codeOf(name) {
  if (/^[a-z]{2,3}$/.test(name)) return name;
  const names = new Intl.DisplayNames("en", { type: "language", fallback: "none" }), letters = [..."abcdefghijklmnopqrstuvwxyz"];
  return letters.flatMap((first) => letters.map((second) => first + second))
    .find((code) => names.of(code)?.toLowerCase() === name.trim().toLowerCase()) ?? "";
}
