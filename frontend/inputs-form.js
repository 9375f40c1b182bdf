// @ts-check
/** The inputs of a graph: each a file, or an array as JSON. Files are uploaded with the job. */

import * as api from "./api.js";
import { byId, el } from "./dom.js";

/** @typedef {import("./types.js").Model} Model @typedef {import("./types.js").Slot} Slot */

const TASKS = ["onnx"];
const box = byId("inputs", HTMLElement);
/** Text and file by the input's name. @type {Map<string, {text: string, file: File|null, id: string}>} */
const given = new Map();
let shown = "";

/** @param {string} task */
export const takesInputs = (task) => TASKS.includes(task);

/** @param {Slot} slot */
const kindOf = ({ type, kind, shape }) => `${type ?? kind} ${shape ? `[${shape.map((side) => side ?? "?").join(", ")}]` : "of any shape"}`;

/** @param {string} text @returns {unknown} undefined unless it is an array, number or text */
function parsed(text) {
  try { return JSON.parse(text); } catch { return undefined; }
}

/** @param {Slot} slot @param {number} place @param {() => void} onChange */
function field(slot, place, onChange) {
  const entry = { text: "", file: /** @type {File|null} */ (null), id: "" }, id = `input-${place}`;
  given.set(slot.name, entry);
  const text = /** @type {HTMLTextAreaElement} */ (el("textarea", { id, rows: "2", spellcheck: "false", placeholder: "[[1, 2], [3, 4]]",
    "aria-describedby": `${id}-hint`, input: () => { entry.text = text.value; check(); } }));
  const file = /** @type {HTMLInputElement} */ (el("input", { type: "file", id: `${id}-file`, accept: ".npy,.npz,.wav,.png",
    change: () => { entry.file = file.files?.[0] ?? null; entry.id = ""; check(); } }));
  const check = () => {
    const wrong = !entry.file && entry.text.trim() && parsed(entry.text) === undefined;
    text.setCustomValidity(wrong ? "Invalid JSON: enter an array such as [[1, 2], [3, 4]]." : "");
    onChange();
  };
  return el("div", { class: "field" },
    el("label", { for: id }, slot.name), text,
    el("p", { class: "hint", id: `${id}-hint` }, `${kindOf(slot)}, as JSON or as a file.`),
    el("label", { for: `${id}-file`, class: "unseen" }, `File for ${slot.name}`), file);
}

/** @param {string} task @param {Model|undefined} model @param {() => void} onChange */
export function showInputs(task, model, onChange) {
  box.hidden = !takesInputs(task) || !model;
  const now = box.hidden ? "" : `${model?.id} ${JSON.stringify(model?.details?.inputs)}`;
  if (now === shown) return; // keep what was typed
  shown = now;
  given.clear();
  const slots = box.hidden ? [] : model?.details?.inputs ?? [];
  box.replaceChildren(...slots.map((slot, place) => field(slot, place, onChange)));
}

/** Return the inputs for the request before the upload; empty ones are omitted. @param {string} task */
export function inputsPlace(task) {
  const filled = [...given].filter(([, entry]) => entry.file || entry.text.trim());
  if (!takesInputs(task) || !filled.length) return {};
  return { inputs: Object.fromEntries(filled.map(([name, { file, id, text }]) => [name, file ? id || "ID" : parsed(text) ?? text])) };
}

/** Upload the files if needed and return the request with their ids. @param {Record<string, unknown>} request */
export async function withInputs(request) {
  if (!takesInputs(String(request.task))) return request;
  for (const entry of given.values()) if (entry.file && !entry.id) entry.id = (await api.sendFile(entry.file)).id;
  return { ...request, ...inputsPlace(String(request.task)) };
}
