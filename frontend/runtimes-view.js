// @ts-check
/** The runtimes: list, install, update, roll back, remove. Progress comes from the event stream of the page. */

import * as api from "./api.js";
import { byId, el, keepFocus, prose, twice } from "./dom.js";
import { bytes, percent, sentence, timeLeft } from "./format.js";
import { act } from "./hardware.js";
import { state } from "./state.js";

/** @typedef {import("./types.js").Runtime} Runtime @typedef {import("./types.js").Job} Job */

const list = byId("runtimes", HTMLElement), said = byId("runtime-said", HTMLElement), best = byId("runtime-best", HTMLElement);
const coming = byId("device-coming", HTMLElement);
/** First installations in progress for hardware of this machine. @type {Runtime[]} */
let awaited = [];
const PHASES = /** @type {Record<string, string>} */ ({ tool: "downloading the installer", python: "selecting a Python",
  resolve: "resolving versions", store: "flushing to disk", prove: "proving its devices" });
/** Active jobs by runtime. @type {Map<string, {id: string, progress?: Job["progress"]}>} */
const working = new Map();
/** Runtimes by job, also after its end, because the list may arrive before the event. @type {Map<string, string>} */
const begun = new Map();
/** @type {(problem: import("./types.js").Problem) => void} */
let fail = () => {};

/** @param {(problem: import("./types.js").Problem) => void} onFail */
export async function loadRuntimes(onFail) {
  fail = onFail;
  try { show(await api.runtimes()); } catch { /* shown in the health line */ }
}

/** @param {{runtimes: Runtime[], best: string|null, best_reason: string}} found */
function show(found) {
  for (const { name, job } of found.runtimes) {
    if (!job) working.delete(name); else if (working.get(name)?.id !== job) work(name, job);
  }
  const gone = found.runtimes.filter((one) => one.state === "unsupported").map((one) => one.name);
  best.textContent = found.best ? `The CPU is used for now. ${found.best_reason}` : "";
  keepFocus(list, () => list.replaceChildren(...found.runtimes.filter((one) => one.state !== "unsupported").map(item),
    gone.length ? el("li", { class: "quiet" }, `Not for this machine: ${gone.join(", ")}.`) : el("li", { hidden: true })));
  awaited = found.runtimes.filter((one) => one.state === "installing" && one.hardware.length);
  for (const name of working.keys()) showProgress(name);
  showAwaited();
}

/** Show the expected installations, estimated from the size at 10 MB/s until the installation reports its own time. */
function showAwaited() {
  const words = awaited.map(({ name, hardware, install_s }) => {
    const cards = hardware.map((id) => state.list.hardware.find((one) => one.id === id)?.name ?? id);
    const left_s = working.get(name)?.progress?.eta_s ?? install_s ?? 0;
    return `CPU for now; ${cards.join(" and ")} in about ${Math.max(1, Math.ceil(left_s / 60))} min.`;
  }).join(" ");
  if (coming.textContent !== words) coming.textContent = words; // else screen readers would repeat it
}

/** @param {Runtime} one */
function item(one) {
  const { name, state, title } = one, busy = working.has(name), own = state !== "installable" && !one.version;
  const size = one.bytes ?? (state === "installable" ? one.install_bytes : null);
  const facts = [name, size != null && `${bytes(size)} on disk`, one.devices.length && `devices: ${one.devices.join(", ")}`, one.licence];
  return el("li", {}, el("p", {}, el("strong", {}, title || name), " ", el("span", { class: "state", "data-state": state }, state)),
    el("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    one.reason && el("p", { class: "hint" }, prose([one.reason, one.remedy ?? ""].map(sentence).join(" "))),
    one.note && el("p", { class: "quiet" }, prose(sentence(one.note))),
    el("p", { class: "coming", "data-runtime": name }),
    el("div", { class: "actions" },
      busy && act("Cancel", () => attempt(name, () => api.cancel(working.get(name)?.id ?? "")), name),
      !busy && (state === "installable" || (state === "broken" && !own)) && act("Install", () => start("install", name), name),
      !busy && state === "installed" && !own && act("Update", () => start("update", name), name),
      !busy && one.previous && act("Roll back", () => attempt(name, () => api.changeRuntime("rollback", name)), name),
      !busy && !own && state !== "installable" && twice(act("Remove", () => {}, name), () => attempt(name, () => api.removeRuntime(name)))));
}

/** @param {string} task @param {string} name */
function start(task, name) {
  return attempt(name, async () => work(name, (await api.changeRuntime(task, name)).id));
}

/** @param {string} name @param {string} id */
function work(name, id) {
  working.set(name, { id });
  begun.set(id, name);
}

/** @param {string} name @param {() => Promise<unknown>} work */
async function attempt(name, work) {
  said.textContent = "";
  try { await work(); } catch (error) { fail(api.asProblem(error)); }
  await loadRuntimes(fail);
}

/** @param {string} name */
function showProgress(name) {
  const place = list.querySelector(`[data-runtime="${CSS.escape(name)}"]`), progress = working.get(name)?.progress;
  if (!place) return;
  const { done = 0, total = null, eta_s = null, phase = "" } = progress ?? {};
  const bar = /** @type {HTMLProgressElement} */ (el("progress", { "aria-label": `Progress of ${name}` }));
  if (total) { bar.max = total; bar.value = done; }
  const words = total ? `${phase}: ${bytes(done)} of ${bytes(total)} (${percent(Math.floor(done / total * 100) / 100)})${timeLeft(eta_s)}` : PHASES[phase] ?? phase;
  place.replaceChildren(bar, words || "waiting in the queue");
}

/** @param {string} event @param {any} data */
export function hearRuntimes(event, data) {
  if (event === "runtime") { loadRuntimes(fail); return; }
  const name = begun.get(data.job_id ?? data.id);
  if (!name) return;
  const job = working.get(name);
  if (event === "progress" && job) { job.progress = data; showProgress(name); showAwaited(); }
  if (!api.TERMINAL.includes(event)) return;
  working.delete(name);
  begun.delete(data.job_id ?? data.id);
  said.textContent = event === "done" ? data.output.text : event === "cancelled" ? `${name}: cancelled.` : `${name}: ${data.detail} ${data.remedy}`;
  loadRuntimes(fail);
}
