// @ts-check
/** The select of models, and the download of a missing one. */

import * as api from "./api.js";
import { byId, el } from "./dom.js";
import { bytes, capital, percent, sentence, timeLeft } from "./format.js";
import { conditions } from "./lyrics.js";
import { state } from "./state.js";

/** @typedef {import("./types.js").Model} Model */

const select = byId("model", HTMLSelectElement), hint = byId("model-hint", HTMLElement), box = byId("download", HTMLElement);
const button = byId("download-button", HTMLButtonElement), words = byId("download-words", HTMLElement);
const bar = byId("download-progress", HTMLProgressElement);
/** Id of the download being followed. @type {string} */
let following = "", said = "";

/** @param {string} text */
function say(text) {
  said = text;
  words.textContent = text;
}

/** @param {Model[]} models @param {string} task */
export const modelsFor = (models, task) => models.filter((model) => (model.tasks?.length ? model.tasks : [model.task]).includes(task));

/** @param {Model[]} models @param {string} chosen @returns {string} the selected id */
export function showModels(models, chosen) {
  const best = models.find((model) => model.id === state.recommended?.model && model.state === "ready");
  const id = chosen || (best ?? models.find((model) => model.default))?.id || models[0]?.id || "";
  const known = models.some((model) => model.id === id);
  const option = (/** @type {Model} */ model) => el("option", { value: model.id },
    model.state === "ready" ? `${model.name}${model.details?.test_model ? " · test model" : ""}` : `${model.name} (${stateWords(model)})`);
  const away = models.filter((model) => model.state === "downloadable" && !model.default), here = models.filter((model) => !away.includes(model));
  select.replaceChildren(...here.map(option), ...(away.length ? [el("optgroup", { label: "Not on this machine" }, ...away.map(option))] : []));
  if (!known && id) select.append(el("option", { value: id }, `${id} · NOT AVAILABLE HERE`));
  if (!id) select.append(el("option", { value: "" }, "No model for this task"));
  select.value = id;
  return id;
}

/** @param {Model} model */
function stateWords(model) {
  if (model.state === "downloadable") return `not downloaded${model.bytes ? `, ${bytes(model.bytes)}` : ""}`;
  return model.state === "downloading" ? "downloading" : `not usable: ${model.state}`;
}

/** @param {Model|undefined} model @param {(problem: import("./types.js").Problem) => void} onFail @param {() => void} onReady */
export function showModelState(model, onFail, onReady) {
  const facts = model ? [model.bytes && bytes(model.bytes), model.licence].filter(Boolean).join(", ") : "";
  const trouble = model && model.state !== "ready" ? [model.reason ?? "", model.remedy ?? ""].map(sentence).join(" ") : "";
  hint.textContent = [facts && sentence(facts), model ? conditions(model) : "", trouble].filter(Boolean).join(" ");
  hint.dataset.kind = trouble ? "warn" : "";
  box.hidden = !(model && ["downloadable", "downloading"].includes(model.state)) && !following;
  button.hidden = model?.state !== "downloadable" || Boolean(following);
  if (!model) return;
  button.textContent = `Download ${model.name} (${model.bytes ? bytes(model.bytes) : "size unknown"})`;
  button.onclick = () => watch(() => api.addModel(model.id), onFail, onReady);
  if (model.state === "downloading" && !following) watch(() => running(model.id), onFail, onReady);
}

/** Return a running download that another client, or this page before a reload, started. @param {string} model */
async function running(model) {
  const { jobs } = await api.jobs("task=download&limit=20");
  return jobs.find((/** @type {import("./types.js").Job} */ job) => job.model === model && !api.isOver(job));
}

/**
 * @param {() => Promise<import("./types.js").Job|undefined>} start
 * @param {(problem: import("./types.js").Problem) => void} onFail
 * @param {() => void} onReady
 */
async function watch(start, onFail, onReady) {
  if (following) return;
  following = "starting";
  button.hidden = true;
  words.textContent = "Starting the download…";
  let job;
  try { job = await start(); } catch (error) { onFail(api.asProblem(error)); }
  const end = (/** @type {string} */ how) => {
    following = "";
    words.textContent = how;
    bar.hidden = true;
    onReady();
  };
  if (!job) { following = ""; words.textContent = ""; button.hidden = false; return; }
  following = job.id;
  bar.hidden = false;
  bar.removeAttribute("value");
  say("Downloading…");
  const lost = (/** @type {import("./types.js").Problem} */ problem) => { end("The download failed."); onFail(problem); };
  api.follow(job.id, (name, data) => {
    if (name === "progress") showProgress(data);
    else if (name === "error" || name === "interrupted") lost(data);
    else if (name === "settled" && data.error) lost(data.error);
    else if (name === "done" || name === "settled") end("Downloaded and checked.");
    else if (name === "cancelled") end("The download was stopped.");
  }, (link) => { words.textContent = link === "open" ? said : "Connection lost. Reconnecting; the download keeps running…"; }, lost);
}

/** @param {import("./types.js").Progress} progress */
function showProgress({ phase, done, total, unit, eta_s }) {
  if (total) { bar.max = total; bar.value = done; }
  const amount = (/** @type {number} */ value) => (unit === "bytes" ? bytes(value) : `${value} ${unit}`);
  say(`${capital(phase)}: ${amount(done)}${total ? ` of ${amount(total)} (${percent(Math.floor(done / total * 100) / 100)})` : ""}${timeLeft(eta_s)}`);
}
