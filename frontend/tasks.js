// @ts-check
/** The task selector, and the prompt texts of each task; other tasks use the general ones. */

import { byId, el } from "./dom.js";
import { capital } from "./format.js";
import { takesInputs } from "./inputs-form.js";
import { modelsFor } from "./model-picker.js";
import { takesSound } from "./sound-file.js";

/** @typedef {import("./types.js").Model} Model */

const box = byId("tasks", HTMLElement), prompt = byId("prompt", HTMLTextAreaElement), label = byId("prompt-label", HTMLElement);

/** @type {Record<string, {label: string, placeholder: string, needed: boolean, rows: number}>} */
const WORDS = {
  text: { label: "Prompt", placeholder: "Write a short poem about a river.", needed: true, rows: 6 },
  lyrics: { label: "More instructions (optional)", placeholder: "Let the chorus name the sea.", needed: false, rows: 2 },
  song: { label: "Description of the sound", placeholder: "slow folk song, fiddle and a warm female voice", needed: false, rows: 2 },
  music: { label: "Description (optional)", placeholder: "a slow sad tune in D minor, 30 seconds", needed: false, rows: 2 },
};
const general = { ...WORDS.text, needed: false };

/** Return the tasks of the models, in a fixed order. @param {Model[]} models */
const tasksOf = (models) => [...new Set([...Object.keys(WORDS).filter((task) => task !== "song"), ...models.map((model) => model.task)])]
  .filter((task) => modelsFor(models, task).length);

/** @param {Model[]} models @param {string} chosen @param {(task: string) => void} onChoose */
export function showTasks(models, chosen, onChoose) {
  const tasks = tasksOf(models);
  if (chosen && !tasks.includes(chosen)) tasks.push(chosen); // requested by the address
  box.replaceChildren(...tasks.map((task) => el("label", {},
    el("input", { type: "radio", name: "task", value: task, checked: task === chosen, change: () => onChoose(task) }), capital(task))));
  box.hidden = tasks.length < 2;
}

/** @param {string} task */
export function showPrompt(task) {
  const words = WORDS[task] ?? general;
  label.textContent = words.label;
  prompt.placeholder = words.placeholder;
  prompt.required = words.needed;
  prompt.rows = words.rows;
  byId("prompt-box", HTMLElement).hidden = takesSound(task) || takesInputs(task);
  // Without a required prompt, the fields are the form.
  if (!["lyrics", "song"].includes(task) && !words.needed && matchMedia("(min-width: 60rem)").matches) byId("options-box", HTMLDetailsElement).open = true;
}
