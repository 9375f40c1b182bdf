// @ts-check
/** Examples for the first job: one for each task. */

import { byId, el } from "./dom.js";
import { modelsFor } from "./model-picker.js";
import { state } from "./state.js";

/** @typedef {{name: string, task: string, prompt: string, options: Record<string, string>}} Preset */

/** @type {Preset[]} */
const PRESETS = [
  { name: "Chat", task: "text", prompt: "Explain in three sentences what a touchstone was used for.", options: { max_tokens: "160" } },
  { name: "Lyrics", task: "lyrics", prompt: "", options: { theme: "a river that finds the sea", style: "folk ballad" } },
  { name: "Tune", task: "music", prompt: "a slow sad air in D minor, 20 seconds", options: {} },
];

const box = byId("starts", HTMLElement);

/** @param {(preset: Preset) => void} onStart */
export function showPresets(onStart) {
  const possible = PRESETS.filter(({ task }) => modelsFor(state.models, task).some((model) => model.state === "ready"));
  box.replaceChildren(...possible.map((preset) => el("button", { type: "button", click: () => onStart(preset) }, preset.name,
    el("span", { class: "quiet" }, preset.prompt || `about ${preset.options.theme}`))));
}
