// @ts-check
/** The speed of each device with the selected model: bars, and a table for screen readers. */

import { byId, el } from "./dom.js";
import { moment, rateWords } from "./format.js";
import { offerMeasuring } from "./measuring-view.js";
import { speedsOf } from "./speeds.js";

/** @typedef {import("./speeds.js").Known} Known */

const section = byId("speeds", HTMLElement), rows = byId("speeds-rows", HTMLElement), title = byId("speeds-title", HTMLElement);
const MEASURED = ["text", "music"];

/** @param {import("./types.js").Model|undefined} model */
export function showSpeeds(model) {
  const known = model ? speedsOf(model.id) : [], can = model?.state === "ready" && MEASURED.includes(model.task);
  section.hidden = !known.length && !can;
  offerMeasuring(can ? model : undefined);
  if (!model) return;
  title.textContent = `Speed of ${model.name} on this machine`;
  const most = Math.max(...known.map((one) => one.value)), cpu = known.find((one) => one.device === "cpu");
  rows.replaceChildren(...known.map((one) => {
    const bar = el("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--length", String(one.value / most));
    return el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, one.device),
      el("td", { role: "cell" }, bar, ` ${rateWords(one)}`),
      el("td", { role: "cell", class: "quiet" }, source(one), slower(one, cpu)));
  }));
}

/** @param {Known} one */
function source(one) {
  const spread = one.low && one.high && one.high > one.low ? `, half of the runs ${rateWords({ value: one.low, unit: "" }).trim()} to ${rateWords({ value: one.high, unit: one.unit })}` : "";
  const many = one.together && one.streams ? `, ${rateWords({ value: one.together, unit: one.unit })} in ${one.streams} streams` : "";
  return `${one.measured ? "measured" : "in the last job"}, ${one.engine ?? "engine unknown"}, ${moment(one.at)}${spread}${many}`;
}

/** @param {Known} one @param {Known|undefined} cpu */
function slower(one, cpu) {
  return cpu && one.device !== "cpu" && one.unit === cpu.unit && one.value < cpu.value ? " · slower than the CPU" : "";
}
