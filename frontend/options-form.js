// @ts-check
/** The fields of a model's options, built from its JSON Schema; an empty field means the service's default. */

import { byId, el } from "./dom.js";
import { capital, sentence } from "./format.js";

/** @typedef {import("./types.js").Schema} Schema */

const LONG_TEXT = 500; // characters; longer fields have several lines
const box = byId("options", HTMLElement), count = byId("options-count", HTMLElement);

/** Return the schema of a fitting field, or null if only a program could fill it. @param {Schema} schema @returns {Schema|null} */
function usable(schema) {
  const branches = schema.anyOf ?? (Array.isArray(schema.type) ? schema.type.map((type) => ({ ...schema, type })) : [schema]);
  const fits = branches.filter((branch) => branch.enum || ["integer", "number", "boolean", "string"].includes(String(branch.type))
    || (branch.type === "array" && branch.items?.type === "string"));
  return fits.find((branch) => branch.type === "array") ?? fits[0] ?? null;
}

/** @param {Schema} schema */
const choices = (schema) => (schema.type === "boolean" ? ["true", "false"] : schema.enum?.map(String));

/** @param {Schema} schema @param {Schema} kind */
function hintWords(schema, kind) {
  const low = kind.minimum ?? (kind.exclusiveMinimum === undefined ? undefined : `over ${kind.exclusiveMinimum}`);
  const high = kind.maximum ?? (kind.exclusiveMaximum === undefined ? undefined : `under ${kind.exclusiveMaximum}`);
  const range = low !== undefined && high !== undefined ? `${low} to ${high}` : low !== undefined ? `from ${low}` : high !== undefined ? `up to ${high}` : "";
  const preset = schema.default;
  const shown = preset == null || (Array.isArray(preset) && !preset.length) || choices(kind)?.includes(String(preset));
  const standard = shown ? "" : `default ${preset}`;
  const lines = kind.type === "array" && !ticked(schema, kind) ? "one per line" : "";
  const facts = [range, lines, standard].filter(Boolean).join(", ");
  return [sentence(schema.description ?? ""), facts && `${capital(facts)}.`].filter(Boolean).join(" ");
}

/** Whether it is an unordered set of a few names. @param {Schema} schema @param {Schema} kind */
const ticked = (schema, kind) => kind.type === "array" && schema.uniqueItems && kind.items?.enum;

/** Return a checkbox for each name. @param {string} name @param {Schema} schema @param {Schema} kind @param {string} value @param {(name: string, value: string) => void} onChange */
function several(name, schema, kind, value, onChange) {
  const id = `option-${name}`, chosen = new Set(value.split("\n"));
  const boxes = (kind.items?.enum ?? []).map(String).map((each) => {
    const box = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", value: each, change: () => onChange(name,
      boxes.filter((one) => one.checked).map((one) => one.value).join("\n")) }));
    box.checked = chosen.has(each);
    return box;
  });
  return el("div", { class: "field", role: "group", id, "aria-labelledby": `${id}-label`, "aria-describedby": `${id}-hint` },
    el("span", { id: `${id}-label` }, capital(name.replaceAll("_", " "))),
    el("div", { class: "choices" }, ...boxes.map((box) => el("label", {}, box, ` ${box.value}`))),
    el("p", { class: "hint", id: `${id}-hint` }, hintWords(schema, kind)));
}

/** @param {string} name @param {Schema} schema @param {string} value @param {(name: string, value: string) => void} onChange */
function field(name, schema, value, onChange) {
  const kind = usable(schema);
  if (!kind) return null;
  const id = `option-${name}`;
  if (ticked(schema, kind)) return several(name, schema, kind, value, onChange);
  const listed = choices(kind);
  const preset = schema.default == null ? null : String(schema.default);
  const numeric = kind.type === "integer" || kind.type === "number";
  const attributes = { id, "aria-describedby": `${id}-hint`, input: (/** @type {Event} */ event) =>
    onChange(name, /** @type {HTMLInputElement} */ (event.target).value) };
  const input = /** @type {HTMLInputElement} */ (listed
    ? el("select", attributes, el("option", { value: "" }, preset === null ? "default" : preset),
      ...listed.filter((choice) => choice !== preset).map((choice) => el("option", { value: choice }, choice)))
    : kind.type === "array" || (kind.maxLength ?? 0) >= LONG_TEXT ? el("textarea", { ...attributes, rows: "2", dir: "auto" })
      : el("input", { ...attributes, type: numeric ? "number" : "text", step: kind.type === "integer" ? "1" : "any",
        min: numeric && kind.minimum !== undefined ? String(kind.minimum) : null,
        max: numeric && kind.maximum !== undefined ? String(kind.maximum) : null, autocomplete: "off" }));
  input.value = value;
  const title = name.replaceAll("_", " ").replace(/\b(?:abc|bpm)\b/g, (short) => short.toUpperCase());
  return el("div", { class: "field" },
    el("label", { for: id }, capital(title)), input,
    el("p", { class: "hint", id: `${id}-hint` }, hintWords(schema, kind)));
}

/**
 * @param {Schema|undefined} schema @param {Record<string, string>} values @param {(name: string, value: string) => void} onChange
 * @param {HTMLElement} [root] parent of the fields
 */
export function showOptions(schema, values, onChange, root = box) {
  const fields = Object.entries(schema?.properties ?? {}).map(([name, inner]) => field(name, inner, values[name] ?? "", onChange));
  root.replaceChildren(...fields.filter((made) => made !== null));
}

/** @param {Schema|undefined} schema @param {Record<string, string>} values */
export function showOptionCount(schema, values) {
  const set = Object.entries(chosenOptions(schema, values)).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  count.textContent = set.length ? set.join(", ") : "all defaults";
}

/**
 * Return the options for the request: the filled fields, parsed by the schema's types.
 * @param {Schema|undefined} schema @param {Record<string, string>} values
 */
export function chosenOptions(schema, values) {
  /** @type {Record<string, unknown>} */
  const options = {};
  for (const [name, inner] of Object.entries(schema?.properties ?? {})) {
    const kind = usable(inner), text = values[name] ?? "";
    if (!kind || text === "") continue;
    if (kind.type === "integer" || kind.type === "number") options[name] = Number(text);
    else if (kind.type === "boolean") options[name] = text === "true";
    else if (kind.type === "array") options[name] = text.split("\n").filter(Boolean);
    else options[name] = kind.enum?.find((choice) => String(choice) === text) ?? text;
  }
  return options;
}
