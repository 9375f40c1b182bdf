// @ts-check
/** The sound file of a job: required for stems, optional for models that follow a melody. Selected or dropped, uploaded with the job. */

import * as api from "./api.js";
import { byId } from "./dom.js";
import { bytes } from "./format.js";

/** @typedef {import("./types.js").Model} Model */

/** The name of the input by task. @type {Record<string, string>} */
const NEEDED = { stems: "audio" };
const box = byId("sound-box", HTMLElement), input = byId("sound", HTMLInputElement), hint = byId("sound-hint", HTMLElement);
const form = byId("form", HTMLFormElement), words = hint.textContent ?? "";
const label = byId("sound-label", HTMLElement);
let name = "";
/** The last uploaded file and its id. @type {{file: File|null, id: string}} */
let sent = { file: null, id: "" };

/** Whether a task takes a sound file instead of a prompt. @param {string} task */
export const takesSound = (task) => task in NEEDED;

/** @param {string} task @param {Model|undefined} model */
export function showSound(task, model) {
  name = NEEDED[task] ?? model?.details?.sounds?.[0] ?? "";
  box.hidden = !name;
  input.required = takesSound(task);
  label.textContent = takesSound(task) ? "Sound file: select it or drop it here" : `Optional ${name} to follow: a sound file`;
}

function tell() {
  const file = input.files?.[0];
  hint.textContent = file ? `${file.name}, ${bytes(file.size)}.` : words;
}

/** Return the inputs for the request before the upload. */
export const soundPlace = () => (name && (input.required || input.files?.length) ? { inputs: { [name]: sent.id || "ID" } } : {});

/** Upload the file if needed and return the request with its id. @param {Record<string, unknown>} request */
export async function withSound(request) {
  const file = input.files?.[0];
  if (!name || !file) return request;
  if (sent.file !== file) sent = { file, id: (await api.sendFile(file)).id };
  return { ...request, inputs: { [name]: sent.id } };
}

/** @param {() => void} onChange */
export function setUpSound(onChange) {
  const changed = () => { tell(); sent = { file: null, id: "" }; onChange(); };
  input.addEventListener("change", changed);
  form.addEventListener("dragover", (event) => {
    if (box.hidden || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    box.dataset.over = "";
  });
  form.addEventListener("dragleave", () => { delete box.dataset.over; });
  form.addEventListener("drop", (event) => {
    delete box.dataset.over;
    if (box.hidden || !event.dataTransfer?.files.length) return;
    event.preventDefault();
    const one = new DataTransfer();
    one.items.add(event.dataTransfer.files[0]);
    input.files = one.files;
    changed();
  });
}
