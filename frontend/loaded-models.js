// @ts-check
/** The loaded models: memory, busy cores, and a button to unload each. */

import { byId, el, keepFocus } from "./dom.js";
import { bytes, plural } from "./format.js";

/** @typedef {import("./types.js").Loaded} Loaded */

const section = byId("workload", HTMLElement), rows = byId("workload-rows", HTMLElement), free = byId("workload-free", HTMLElement);
/** CPU seconds of a process and the time of the reading. @type {Map<number, {cpu_s: number, at: number}>} */
const before = new Map();

/** @param {import("./types.js").DeviceList} list @param {(model: string) => void} onUnload */
export function showWorkload({ loaded = [], devices }, onUnload) {
  section.hidden = !loaded.length;
  keepFocus(rows, () => rows.replaceChildren(...loaded.map((one) => row(one, onUnload))));
  const cpu = devices.find(({ id }) => id === "cpu");
  free.textContent = cpu?.memory_free_bytes == null ? "" : `${bytes(cpu.memory_free_bytes)} of system memory free.`;
}

/** @param {Loaded} one @param {(model: string) => void} onUnload */
function row(one, onUnload) {
  const cell = (/** @type {string} */ words) => el("td", { role: "cell" }, words);
  return el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, one.model), cell(`${one.device}, ${one.engine}`), cell(bytes(one.memory_bytes)),
    cell(one.jobs ? `${plural(one.jobs, "job")}${loadWords(one)}` : "idle"),
    el("td", { role: "cell" }, el("button", { type: "button", class: "small", "data-key": `${one.model} ${one.device}`, click: () => onUnload(one.model) }, "Unload",
      el("span", { class: "unseen" }, ` ${one.model}`))));
}

/** Return the busy cores since the last reading. @param {Loaded} one */
function loadWords({ pid, cpu_s }) {
  if (pid === null || cpu_s === null) return "";
  const now = { cpu_s, at: performance.now() }, last = before.get(pid);
  before.set(pid, now);
  const passed_s = last ? (now.at - last.at) / 1000 : 0;
  return last && passed_s > 0.5 ? `, ${((cpu_s - last.cpu_s) / passed_s).toFixed(1)} cores busy` : "";
}
