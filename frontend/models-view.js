// @ts-check
/** The models: list, download, add, remove. Progress comes from the event stream of the page. */

import * as api from "./api.js";
import { byId, el, keepFocus, prose, twice } from "./dom.js";
import { bytes, fitWords, percent, plain, sentence, timeLeft } from "./format.js";
import { act } from "./hardware.js";
import { conditions } from "./lyrics.js";
import { state } from "./state.js";

/** @typedef {import("./types.js").Model} Model @typedef {import("./types.js").Job} Job */

const list = byId("models", HTMLElement), form = byId("model-add", HTMLFormElement), source = byId("model-source", HTMLInputElement);
const said = byId("model-said", HTMLElement), offer = byId("model-offer", HTMLElement);
/** Active downloads by model. @type {Map<string, Job>} */
const coming = new Map();

/** @param {(problem: import("./types.js").Problem) => void} onFail @param {() => void} onChange */
export function modelActs(onFail, onChange) {
  const attempt = async (/** @type {() => Promise<void>} */ work) => {
    try { await work(); } catch (error) { onFail(api.asProblem(error)); }
    onChange();
  };
  const add = (/** @type {string} */ address) => attempt(async () => {
    const job = await api.addModel(address);
    if (job.model) coming.set(job.model, job);
    said.textContent = `Downloading ${address}…`;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    add(source.value.trim()).then(() => { source.value = ""; });
  });
  return {
    add,
    download: (/** @type {string} */ id) => attempt(async () => { coming.set(id, await api.addModel(id)); }),
    remove: (/** @type {string} */ id) => attempt(async () => { await api.removeModel(id); said.textContent = `${id} was removed.`; form.querySelector("button")?.focus(); }),
  };
}

/** @param {Model} model @param {ReturnType<typeof modelActs>} acts */
function entry(model, acts) {
  return el("li", {}, el("p", {}, el("strong", {}, model.name), " ",
    el("span", { class: "state", "data-state": model.state }, model.state), model.default ? " the default" : "",
    model.details?.test_model && `${model.default ? "," : ""} a test model, whose answers are often wrong`),
  model.details?.good_at && !model.details.test_model && el("p", { class: "quiet" }, model.details.good_at),
  el("p", { class: "quiet", dir: "auto" }, [model.id, model.task, bytes(model.bytes), model.licence ?? "licence unknown",
    fitWords(model.fits)?.words, model.engines?.length && `runs with ${model.engines.join(", ")}`, `from ${plain(model.source)}`].filter(Boolean).join(" · ")),
  ...(model.fits ?? []).map(({ reason }) => el("p", { class: "quiet" }, reason)),
  conditions(model) && el("p", { class: "hint" }, conditions(model)),
  model.state !== "ready" && model.reason && el("p", { class: "hint" }, prose([model.reason, model.remedy ?? ""].map(sentence).join(" "))),
  el("p", { class: "coming", "data-model": model.id }),
  el("div", { class: "actions" }, model.state === "downloadable" && !coming.has(model.id) && act("Download", () => acts.download(model.id), model.name),
    model.state === "ready" && model.source !== "built-in" && twice(act("Remove", () => {}, model.name), () => acts.remove(model.id))));
}

/** Offer the recommended model, with size and time, while it is not here. @param {ReturnType<typeof modelActs>} acts */
function showOffer(acts) {
  const found = state.recommended;
  offer.hidden = found?.state !== "downloadable" || coming.has(found.model);
  if (!found || offer.hidden) { offer.replaceChildren(); return; }
  const { model, name, download_s, licence, reason } = found;
  const time = download_s ? `, about ${Math.max(1, Math.round(download_s / 60))} min at 100 Mbit/s` : "";
  keepFocus(offer, () => offer.replaceChildren(el("p", {}, "Recommended for this machine: ", el("strong", {}, name), `. ${reason}`),
    el("p", { class: "quiet" }, `${bytes(found.bytes)}${time} · ${licence ?? "licence unknown"}`),
    el("div", { class: "actions" }, act("Download", () => acts.download(model), name))));
}

/** @param {ReturnType<typeof modelActs>} acts */
export function showModelList(acts) {
  showOffer(acts);
  const shown = state.models.filter((model) => model.state !== "downloadable" || coming.has(model.id));
  const others = state.models.filter((model) => !shown.includes(model)), open = list.querySelector("details")?.open ?? false;
  keepFocus(list, () => list.replaceChildren(...shown.map((model) => entry(model, acts)), ...(others.length ? [el("li", {}, el("details", { open },
    el("summary", {}, `${others.length} more that can be downloaded`), el("ul", { class: "models" }, ...others.map((model) => entry(model, acts)))))] : [])));
  for (const [id, job] of coming) showComing(id, job);
}

/** @param {string} id @param {Job} job */
function showComing(id, { progress }) {
  const place = list.querySelector(`[data-model="${CSS.escape(id)}"]`);
  if (!place) return;
  const { done = 0, total = null, eta_s = null } = progress ?? {};
  const bar = /** @type {HTMLProgressElement} */ (el("progress", { "aria-label": `Download of ${id}` }));
  if (total) { bar.max = total; bar.value = done; }
  place.replaceChildren(bar, progress ? `${bytes(done)}${total ? ` of ${bytes(total)} (${percent(Math.floor(done / total * 100) / 100)})` : ""}${timeLeft(eta_s)}` : "Starting…");
}

/** @param {string} event @param {any} data @returns {boolean} whether the models have to be reloaded */
export function hearModels(event, data) {
  const found = [...coming].find(([, job]) => job.id === data.job_id || job.id === data.id);
  if (!found) return false;
  const [id, job] = found;
  if (event === "progress") { job.progress = data; showComing(id, job); return false; }
  if (!api.TERMINAL.includes(event)) return false;
  coming.delete(id);
  said.textContent = event === "done" ? `${id} was downloaded and checked.` : `${id} was not downloaded: ${data.detail ?? "the download was stopped"}`;
  return true;
}
