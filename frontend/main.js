// @ts-check
/** Connect the modules to the page. */

import * as api from "./api.js";
import { byId, copy } from "./dom.js";
import { listen } from "./feed.js";
import { foldOnNarrowScreens } from "./collapsible.js";
import { Form } from "./form.js";
import { showMachine } from "./hardware.js";
import { watchHealth } from "./health.js";
import { JobControl } from "./job-control.js";
import { JobView } from "./job-view.js";
import { JobsBoard } from "./jobs-board.js";
import { songOf } from "./lyrics.js";
import { setUpModelSearch } from "./model-search.js";
import { hearModels, modelActs, showModelList } from "./models-view.js";
import { hearMeasuring, measure, setUpMeasuring } from "./measuring-view.js";
import { showPresets } from "./presets.js";
import { hearRuntimes, loadRuntimes } from "./runtimes-view.js";
import { settings, shownJob, wholeAddress } from "./settings.js";
import { listenToKeys } from "./shortcuts.js";
import { showSpeeds } from "./speed-chart.js";
import { state, steady } from "./state.js";
import { askForToken, takeTokenFromAddress } from "./token-form.js";
import { showWorkload } from "./loaded-models.js";

/** @typedef {import("./types.js").DeviceList} DeviceList */

const PROBE_WAIT_S = 30, WATCH_MS = 2000, SOON_MS = 200;
const element = byId("form", HTMLFormElement), refresh = byId("refresh", HTMLButtonElement);
let watching = 0, soon = 0;

const view = new JobView();
const fail = (/** @type {import("./types.js").Problem} */ problem) => view.fail(problem);
const control = new JobControl(view, () => { board.current = control.job?.id ?? ""; board.refresh(); loadDevices(); }); // a job can change the state of a device
const board = new JobsBoard({ open: async (id) => { await control.open(id); showResult(); }, gone: (id) => control.close(id), fail, fresh: showSpeed });
const form = new Form(fail, loadModels);
const models = modelActs(fail, loadModels);
setUpMeasuring(fail);
setUpModelSearch(models.add);
const acts = {
  ask: (/** @type {string} */ id) => { form.chooseDevice(id); byId("device", HTMLSelectElement).focus(); },
  probe: (/** @type {string} */ id) => attempt(() => api.refreshDevices(id)),
  release: (/** @type {string} */ id, /** @type {string|undefined} */ model) => attempt(() => api.release(id, model)),
  measure: (/** @type {string} */ id) => { measure(id); byId("speeds", HTMLElement).scrollIntoView({ block: "nearest" }); },
  unload: (/** @type {string} */ model) => attempt(() => api.unload(model)),
};

/** @param {() => Promise<unknown>} work */
async function attempt(work) {
  try { await work(); } catch (error) { fail(api.asProblem(error)); }
  loadDevices();
}

/** Update what depends on past jobs. */
function showSpeed() {
  form.showDevices();
  showSpeeds(form.model);
}

/** @param {DeviceList} found */
function takeDevices(found) {
  const same = steady(found) === steady(state.list);
  state.list = found;
  view.devices = found.devices;
  showWorkload(found, acts.unload);
  clearTimeout(watching);
  if (found.loaded?.some((one) => one.jobs)) watching = window.setTimeout(watch, WATCH_MS);
  if (same) return; // an open select must not close
  showSpeed();
  view.showRerun();
  showMachine(found, acts);
}

/** Poll memory and load, which change without an event. */
async function watch() {
  if (document.hidden) watching = window.setTimeout(watch, WATCH_MS);
  else try { takeDevices(await api.devices()); } catch { /* shown in the health line */ }
}

/** @param {unknown} error */
function notLoaded(error) {
  const problem = api.asProblem(error);
  if (problem.code === "unauthorized") askForToken(load);
  else if (problem.code !== "unreachable") view.fail(problem); // shown in the health line
}

async function loadDevices() {
  try {
    takeDevices(await api.devices());
    while (state.list.probing) takeDevices(await api.devices(PROBE_WAIT_S));
    loadRuntimes(fail); // their use depends on the detected hardware
  } catch (error) { notLoaded(error); }
}

async function loadModels() {
  try { ({ models: state.models, recommended: state.recommended = null } = await api.models()); } catch (error) { return notLoaded(error); }
  form.showModels();
  showModelList(models);
  showPresets((preset) => { if (!control.active) { form.fill(preset); send(); } });
  showSpeed();
}

function load() {
  loadDevices();
  loadModels();
  const earlier = shownJob.get();
  if (earlier && !control.active && control.job?.id !== earlier) control.open(earlier); else board.refresh();
}

function send() {
  if (control.active) return;
  form.keep();
  control.generate(() => form.complete());
  showResult();
}

/** Scroll to the result unless its start is visible. */
function showResult() {
  const result = byId("result", HTMLElement), { top } = result.getBoundingClientRect();
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (top < 0 || top > innerHeight / 2) result.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
}

element.addEventListener("submit", (event) => { event.preventDefault(); send(); });
byId("model", HTMLSelectElement).addEventListener("change", () => showSpeeds(form.model));
byId("sing", HTMLButtonElement).addEventListener("click", () => {
  if (!control.job || control.active) return;
  form.fill(songOf(control.job, state.models));
  byId("prompt", HTMLTextAreaElement).focus();
});
foldOnNarrowScreens();
listenToKeys(element, () => control.stop());
for (const [id, words] of /** @type {[string, () => string][]} */ ([["curl-copy", () => byId("curl", HTMLElement).textContent ?? ""], ["link-copy", wholeAddress]])) {
  byId(id, HTMLButtonElement).addEventListener("click", (event) => copy(words(), /** @type {HTMLElement} */ (event.currentTarget)));
}
refresh.addEventListener("click", () => attempt(() => api.refreshDevices()));
addEventListener("hashchange", async () => { if (await takeTokenFromAddress()) load(); });
await takeTokenFromAddress();
watchHealth(load);
load();
listen(({ event, data }) => {
  if (event === "device") { clearTimeout(soon); soon = window.setTimeout(loadDevices, SOON_MS); } else board.hear(event, data);
  if (hearModels(event, data)) loadModels();
  if (hearMeasuring(event, data)) loadDevices();
  hearRuntimes(event, data);
}, () => { loadDevices(); loadModels(); board.refresh(); });
