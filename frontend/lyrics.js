// @ts-check
/**
 * Lyrics on a text model: fields of their own, and the prompt that they make. Where a model serves the task itself, its own
 * options are the form and this file has nothing to say.
 */

/** @typedef {import("./types.js").Model} Model @typedef {import("./types.js").Schema} Schema */

const SECTIONS = ["verse", "chorus", "bridge"];

/** @type {Record<string, Schema>} */
const FIELDS = {
  theme: { type: "string", description: "What it is about" },
  style: { type: "string", description: "Such as folk ballad, blues or sea shanty" },
  language: { type: "string", description: "Which languages a model knows stands in its description; small ones know English", default: "English" },
  sections: { type: "array", items: { type: "string" }, description: `Any of ${SECTIONS.join(", ")}, in their order`,
    default: ["verse", "chorus", "verse", "chorus"] },
  lines_per_section: { type: "integer", minimum: 1, maximum: 12, default: 4 },
};

/** Whether the page makes the lyrics' prompt for this model. @param {string} task @param {Model|undefined} model */
export const writesPrompt = (task, model) => task === "lyrics" && model?.task === "text";

/** @type {Schema} */
export const lyricsSchema = { properties: FIELDS };

/** @param {Record<string, string>} values as typed @param {string} more wishes in words @returns {string} */
export function lyricsPrompt(values, more) {
  const said = (/** @type {string} */ name) => (values[name] ?? "").trim();
  const sections = said("sections").split(/[\n,]+/).map((word) => word.trim()).filter(Boolean);
  const order = sections.length ? sections : /** @type {string[]} */ (FIELDS.sections.default);
  const lines = said("lines_per_section") || String(FIELDS.lines_per_section.default);
  return [
    `Write the lyrics of a ${said("style") ? `${said("style")} ` : ""}song${said("theme") ? ` about ${said("theme")}` : ""}`
      + `${said("language") ? ` in ${said("language")}` : ""}.`,
    `It has these sections in this order: ${order.join(", ")}. Begin each with a line that names it, such as [${order[0]}], `
      + `then ${lines} short line${lines === "1" ? "" : "s"}.`,
    more.trim(),
    "Write nothing but the lyrics.",
  ].filter(Boolean).join(" ");
}

const SMALL_BYTES = 500_000_000;

/** What may be hoped for, in plain words. @param {string} task @param {Model|undefined} model @returns {string} */
export function expectation(task, model) {
  if (!model || !["text", "lyrics"].includes(task) || !model.bytes || model.bytes > SMALL_BYTES) return "";
  return task === "lyrics"
    ? "A small model: expect short, plain lines that often repeat, may lose the theme or a section, and seldom rhyme."
    : "A small model: good for trying a device. It writes fluent short English, and its facts are often wrong.";
}
