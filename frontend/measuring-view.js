// @ts-check
/** The measurement of a model on the devices: button, progress, result. Progress comes from the event stream of the page. */

import * as api from "./api.js";
import { byId, el, keepFocus, prose } from "./dom.js";
import { percent, sentence, timeLeft } from "./format.js";
import { act } from "./hardware.js";

/** @typedef {import("./types.js").Job} Job @typedef {import("./types.js").Model} Model */

const actions = byId("measure-actions", HTMLElement), coming = byId("measure-coming", HTMLElement), said = byId("measure-said", HTMLElement);
/** The running measurement. @type {{id: string, model: string, progress?: Job["progress"], began: number}|null} */
let working = null;
/** @type {Model|undefined} */
let offered;
/** @type {(problem: import("./types.js").Problem) => void} */
let fail = () => {};

/** @param {(problem: import("./types.js").Problem) => void} onFail */
export function setUpMeasuring(onFail) { fail = onFail; }

/** @param {Model|undefined} model a model that can be measured */
export function offerMeasuring(model) {
  offered = model;
  show();
}

function show() {
  keepFocus(actions, () => actions.replaceChildren(...(working ? [act("Stop measuring", stop, working.model)]
    : offered ? [act("Measure", () => measure(), `${offered.name} on all devices`)] : [])));
  coming.hidden = !working;
  if (!working) return;
  const { done = 0, total = null, phase = "" } = working.progress ?? {};
  const bar = /** @type {HTMLProgressElement} */ (el("progress", { "aria-label": `Measuring ${working.model}` }));
  if (total) { bar.max = total; bar.value = done; }
  const eta_s = total && done ? (performance.now() - working.began) / 1000 / done * (total - done) : null;
  coming.replaceChildren(bar, total ? `${phase}: ${percent(Math.floor(done / total * 100) / 100)}${timeLeft(eta_s)}` : "Waiting in the queue…");
}

/** Measure the selected model. @param {string} [device] optional; default: all ready devices */
export async function measure(device) {
  if (!offered || working) return;
  said.replaceChildren();
  try {
    const { id: model } = offered, job = await api.measure({ models: [model], ...(device ? { devices: [device] } : {}) });
    working = { id: job.id, model, progress: job.progress, began: performance.now() };
  } catch (error) { fail(api.asProblem(error)); }
  show();
}

async function stop() {
  try { if (working) await api.cancel(working.id); } catch { /* it has just ended; its last event follows */ }
}

/** @param {string} event @param {any} data @returns {boolean} whether the devices have to be reloaded */
export function hearMeasuring(event, data) {
  if (!working || working.id !== (data.job_id ?? data.id)) return false;
  if (event === "progress") { working.progress = data; show(); return false; }
  if (!api.TERMINAL.includes(event)) return false;
  const words = event === "done" ? data.output.result.words : event === "cancelled" ? ["The measurement was stopped; no result was kept."]
    : [`The measurement failed. ${sentence(data.detail)} ${sentence(data.remedy)}`];
  said.replaceChildren(...words.map((/** @type {string} */ one) => el("p", {}, prose(one))));
  working = null;
  show();
  return true;
}
