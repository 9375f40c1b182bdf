// @ts-check
/** How fast each device was with the chosen model: bars of what was measured, a table for those who do not see them. */

import { byId, el } from "./dom.js";
import { moment, rateWords } from "./format.js";
import { speedsOf } from "./speeds.js";

const section = byId("speeds", HTMLElement), rows = byId("speeds-rows", HTMLElement), title = byId("speeds-title", HTMLElement);

/** @param {import("./types.js").Model|undefined} model */
export function showSpeeds(model) {
  const known = model ? speedsOf(model.id) : [];
  section.hidden = !known.length;
  if (!model) return;
  title.textContent = `How fast ${model.name} was here`;
  const most = Math.max(...known.map((one) => one.value));
  rows.replaceChildren(...known.map((one) => {
    const bar = el("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--length", String(one.value / most));
    return el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, one.device),
      el("td", { role: "cell" }, bar, ` ${rateWords(one)}`),
      el("td", { role: "cell", class: "quiet" }, `${one.measured ? "measured" : "in the last job"}, ${one.engine ?? "engine not known"}, ${moment(one.at)}`));
  }));
}
