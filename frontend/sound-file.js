// @ts-check
/** The sound file of a job that takes one: chosen or dropped on the form, and sent when the job is. */

import * as api from "./api.js";
import { byId } from "./dom.js";
import { bytes } from "./format.js";

const TASKS = ["stems"], INPUT = "audio";
const box = byId("sound-box", HTMLElement), input = byId("sound", HTMLInputElement), hint = byId("sound-hint", HTMLElement);
const form = byId("form", HTMLFormElement), words = hint.textContent ?? "";
/** The last one that was sent, and the id that it got. @type {{file: File|null, id: string}} */
let sent = { file: null, id: "" };

/** @param {string} task */
export const takesSound = (task) => TASKS.includes(task);

/** @param {string} task */
export function showSound(task) {
  box.hidden = !takesSound(task);
  input.required = takesSound(task);
}

function tell() {
  const file = input.files?.[0];
  hint.textContent = file ? `${file.name}, ${bytes(file.size)}.` : words;
}

/** What the request holds as long as nothing was sent. @param {string} task */
export const soundPlace = (task) => (takesSound(task) ? { inputs: { [INPUT]: sent.id || "ID" } } : {});

/** The request with the id of its file, which is sent if it was not yet. @param {Record<string, unknown>} request */
export async function withSound(request) {
  const file = input.files?.[0];
  if (!takesSound(String(request.task)) || !file) return request;
  if (sent.file !== file) sent = { file, id: (await api.sendFile(file)).id };
  return { ...request, inputs: { [INPUT]: sent.id } };
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
