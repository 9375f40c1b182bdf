// @ts-check
/** Devices that are not ready: state, reason and remedy. */

import { byId, el, keepFocus, prose, remedy } from "./dom.js";
import { plural, sentence } from "./format.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {import("./types.js").DeviceList} DeviceList
 */

const table = byId("others", HTMLTableElement), body = byId("others-rows", HTMLElement), empty = byId("others-empty", HTMLElement);

/** @param {DeviceList} list @param {import("./hardware.js").Acts} acts what its buttons do */
export function showOthers(list, acts) {
  const others = list.devices.filter((device) => device.state !== "ready");
  table.hidden = !others.length;
  const ready = plural(list.devices.length - others.length, "device");
  empty.textContent = list.probing ? "Checking devices…" : others.length ? "" : `None. ${ready} ready, no other found.`;
  empty.hidden = !empty.textContent;
  keepFocus(body, () => body.replaceChildren(...others.map((device) => row(device, acts))));
}

/** @param {Device} device @param {import("./hardware.js").Acts} acts */
function row(device, acts) {
  const button = (/** @type {string} */ words, /** @type {() => void} */ click) =>
    el("button", { type: "button", class: "small", "data-key": `${words} ${device.id}`, click }, words, el("span", { class: "unseen" }, ` ${device.id}`));
  return el("tr", { role: "row" },
    el("th", { scope: "row", role: "rowheader", dir: "auto" }, device.id, el("span", { class: "quiet" }, ` ${device.name}`)),
    el("td", { role: "cell" }, el("span", { class: "state", "data-state": device.state }, device.state),
      device.layer ? el("p", { class: "quiet" }, `at: ${device.layer}`) : ""),
    el("td", { role: "cell", dir: "auto" }, prose(sentence(device.reason ?? ""))),
    el("td", { role: "cell", dir: "auto" }, el("p", {}, ...remedy(sentence(device.remedy ?? ""))),
      el("div", { class: "actions" }, device.state === "quarantined" && button("Lift the quarantine", () => acts.release(device.id)),
        ["broken", "unavailable"].includes(device.state) && button("Probe again", () => acts.probe(device.id)),
        button("Select it anyway", () => acts.ask(device.id)))));
}
