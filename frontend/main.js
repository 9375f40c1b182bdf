// @ts-check
/** Wires the modules to the page. */

import * as api from "./api.js";
import { curlCommand } from "./curl.js";
import { showDeviceHint, showDevices } from "./device-picker.js";
import { byId, copy } from "./dom.js";
import { showMachine } from "./hardware.js";
import { watchHealth } from "./health.js";
import { refreshHistory } from "./history.js";
import { JobControl } from "./job-control.js";
import { JobView } from "./job-view.js";
import { modelsFor, showModels, showModelState } from "./model-picker.js";
import { showOptionCount, showOptions } from "./options-form.js";
import { requestOf } from "./request.js";
import { enterTask, save, settings, shownJob } from "./settings.js";
import { listenToKeys } from "./shortcuts.js";
import { showPrompt, showTasks } from "./tasks.js";
import { askForToken, takeTokenFromAddress } from "./token-form.js";

/**
 * @typedef {import("./types.js").DeviceList} DeviceList
 * @typedef {import("./types.js").Model} Model
 */

const PROBE_WAIT_S = 30, SAVE_AFTER_MS = 300;
const form = byId("form", HTMLFormElement), prompt = byId("prompt", HTMLTextAreaElement);
const device = byId("device", HTMLSelectElement), fallback = byId("fallback", HTMLSelectElement), model = byId("model", HTMLSelectElement);
const curl = byId("curl", HTMLElement), refresh = byId("refresh", HTMLButtonElement);

/** @type {DeviceList} */
let list = { devices: [], hardware: [], default: null, default_reason: null, probing: true };
/** @type {Model[]} */
let models = [];
let saving = 0;

const view = new JobView();
const control = new JobControl(view, () => { showHistory(); loadDevices(); }); // a job can change what a device is
const chosenModel = () => models.find((one) => one.id === model.value);

function showHistory() {
  refreshHistory((id) => control.open(id), control.job?.id);
}

function showChoice() {
  showDeviceHint(list, settings.device, settings.fallback, model.value);
  showOptionCount(chosenModel()?.options_schema, settings.options);
  curl.textContent = curlCommand(requestOf(chosenModel(), prompt.value));
}

/** @param {string} id */
function chooseDevice(id) {
  save({ device: id });
  showDevices(list, id, settings.task);
  showChoice();
}

/** @param {DeviceList} found */
function takeDevices(found) {
  const same = JSON.stringify(found) === JSON.stringify(list);
  list = found;
  view.devices = found.devices;
  if (same) return; // an open select must not close under the person's hand
  chooseDevice(settings.device);
  showMachine(list, (id) => { chooseDevice(id); device.focus(); });
}

/** @param {unknown} error */
function notLoaded(error) {
  const problem = api.asProblem(error);
  if (problem.code === "unauthorized") askForToken(load);
  else if (problem.code !== "unreachable") view.fail(problem); // the health line says that one
}

async function loadDevices() {
  try {
    takeDevices(await api.devices());
    while (list.probing) takeDevices(await api.devices(PROBE_WAIT_S));
  } catch (error) { notLoaded(error); }
}

async function loadModels() {
  try { ({ models } = await api.models()); } catch (error) { return notLoaded(error); }
  showTasks(models, settings.task, chooseTask);
  showTask();
}

function showTask() {
  showPrompt(settings.task);
  prompt.value = settings.prompt;
  showModels(modelsFor(models, settings.task), settings.model);
  showModel();
}

/** @param {string} task */
function chooseTask(task) {
  save({ prompt: prompt.value });
  enterTask(task);
  showTask();
  chooseDevice(settings.device);
}

function showModel() {
  showModelState(chosenModel(), (problem) => view.fail(problem), loadModels);
  showOptions(chosenModel()?.options_schema, settings.options, (name, value) => {
    save({ options: { ...settings.options, [name]: value } });
    showChoice();
  });
  showChoice();
}

function load() {
  loadDevices();
  loadModels();
  const earlier = shownJob.get();
  if (earlier && !control.active && control.job?.id !== earlier) control.open(earlier); else showHistory();
}

device.addEventListener("change", () => chooseDevice(device.value));
fallback.addEventListener("change", () => { save({ fallback: fallback.value }); showChoice(); });
model.addEventListener("change", () => { save({ model: model.value }); showModel(); });
prompt.addEventListener("input", () => {
  clearTimeout(saving);
  saving = window.setTimeout(() => { save({ prompt: prompt.value }); showChoice(); }, SAVE_AFTER_MS);
});
addEventListener("pagehide", () => save({ prompt: prompt.value }));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (control.active) return;
  save({ prompt: prompt.value });
  showChoice();
  control.generate(requestOf(chosenModel(), prompt.value));
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("result", HTMLElement).scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
});
listenToKeys(form, () => control.stop());
byId("curl-copy", HTMLButtonElement).addEventListener("click", (event) =>
  copy(curl.textContent ?? "", /** @type {HTMLElement} */ (event.currentTarget)));
refresh.addEventListener("click", async () => {
  try { await api.refreshDevices(); await loadDevices(); } catch (error) { view.fail(api.asProblem(error)); }
});

fallback.value = settings.fallback;
prompt.value = settings.prompt;
showPrompt(settings.task);
addEventListener("hashchange", async () => { if (await takeTokenFromAddress()) load(); });
await takeTokenFromAddress();
watchHealth(load);
load();
