// @ts-check
/** The form: the selection, its consequences as text, and the resulting request. */

import { curlCommand } from "./curl.js";
import { showDeviceHint, showDevices } from "./device-picker.js";
import { byId } from "./dom.js";
import { bytes } from "./format.js";
import { showInputs, withInputs } from "./inputs-form.js";
import { expectation, makesSongs, partedSchema, schemaOf } from "./lyrics.js";
import { modelsFor, showModels, showModelState } from "./model-picker.js";
import { showOptionCount, showOptions } from "./options-form.js";
import { requestOf } from "./request.js";
import { enterTask, save, settings } from "./settings.js";
import { setUpSharing, showSharing } from "./multi-device.js";
import { setUpSound, showSound, withSound } from "./sound-file.js";
import { state } from "./state.js";
import { showPrompt, showTasks } from "./tasks.js";

/** @typedef {import("./types.js").Model} Model */

/** Name the recommended model while a test model is chosen. @param {string} task @param {Model|undefined} model @returns {string} */
function betterModel(task, model) {
  const found = state.recommended;
  if (task !== "text" || !model?.details?.test_model || found?.state !== "downloadable") return "";
  return ` For good answers download ${found.name} (${bytes(found.bytes)}) under Models.`;
}

const SAVE_AFTER_MS = 300;
const prompt = byId("prompt", HTMLTextAreaElement), curl = byId("curl", HTMLElement), note = byId("task-note", HTMLElement);
const device = byId("device", HTMLSelectElement), fallback = byId("fallback", HTMLSelectElement), model = byId("model", HTMLSelectElement);
let saving = 0;

export class Form {
  /** @param {(problem: import("./types.js").Problem) => void} onFail @param {() => void} onModel another model is selected, or its download ended */
  constructor(onFail, onModel) {
    this.onFail = onFail;
    this.onModel = onModel;
    fallback.value = settings.fallback;
    prompt.value = settings.prompt;
    showPrompt(settings.task);
    device.addEventListener("change", () => this.chooseDevice(device.value));
    fallback.addEventListener("change", () => { save({ fallback: fallback.value }); this.say(); });
    model.addEventListener("change", () => { save({ model: model.value }); this.showModel(); });
    prompt.addEventListener("input", () => {
      clearTimeout(saving);
      saving = window.setTimeout(() => this.keep(), SAVE_AFTER_MS);
    });
    setUpSound(() => this.say());
    setUpSharing(() => this.say());
    addEventListener("pagehide", () => save({ prompt: prompt.value }));
  }

  get model() { return state.models.find((one) => one.id === model.value); }

  /** Save the input and update the curl command. */
  keep() {
    save({ prompt: prompt.value });
    this.say();
  }

  request() { return requestOf(this.model, prompt.value); }

  /** Upload the files and return the request. */
  async complete() { return withInputs(await withSound(this.request())); }

  /** Update everything that depends on the selection. */
  say() {
    showDeviceHint(state.list, settings.device, settings.fallback, this.model);
    showOptionCount(partedSchema(this.model, settings.task).rest, settings.options);
    curl.textContent = curlCommand(this.request());
  }

  /** @param {string} id */
  chooseDevice(id) {
    save({ device: id });
    this.showDevices();
  }

  showDevices() {
    showDevices(state.list, settings.device, settings.task, this.model);
    showSharing(state.list, settings.task, schemaOf(this.model, settings.task));
    this.say();
  }

  /** Update everything that depends on the list of models, except the prompt, in which the user may be typing. */
  showModels() {
    showTasks(state.models, settings.task, (task) => this.chooseTask(task));
    this.showTask();
  }

  showTask() {
    showModels(modelsFor(state.models, settings.task), settings.model);
    this.showModel();
  }

  /** @param {string} task */
  chooseTask(task) {
    save({ prompt: prompt.value });
    enterTask(task);
    prompt.value = settings.prompt;
    this.showModels();
  }

  /** @param {{task: string, model?: string, prompt: string, options: Record<string, string>}} preset values for the form */
  fill({ task, model: id, prompt: words, options }) {
    if (task !== settings.task) this.chooseTask(task);
    save({ prompt: words, options, ...(id && { model: id }) });
    prompt.value = words;
    this.showTask();
  }

  showModel() {
    showSound(settings.task, this.model);
    showInputs(settings.task, this.model, () => this.say());
    showModelState(this.model, this.onFail, this.onModel);
    const { task } = settings;
    note.textContent = `${expectation(task, this.model)}${betterModel(task, this.model)}`;
    const change = (/** @type {string} */ name, /** @type {string} */ value) => {
      save({ options: { ...settings.options, [name]: value } });
      this.say();
    };
    const { front, rest } = partedSchema(this.model, task), song = byId("song", HTMLElement);
    song.hidden = !Object.keys(front.properties).length;
    showPrompt(makesSongs(this.model) ? "song" : task);
    showOptions(front, settings.options, change, song);
    showOptions(rest, settings.options, change);
    this.showDevices();
  }
}

