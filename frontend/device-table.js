// @ts-check
/** Devices that cannot be chosen now: in which state they are, why, and what brings them. */

import { byId, el, prose } from "./dom.js";
import { plural, sentence } from "./format.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {import("./types.js").DeviceList} DeviceList
 */

const table = byId("others", HTMLTableElement), body = byId("others-rows", HTMLElement), empty = byId("others-empty", HTMLElement);

/** @param {DeviceList} list @param {(id: string) => void} onAsk asks for a device although it is not ready */
export function showOthers(list, onAsk) {
  const others = list.devices.filter((device) => device.state !== "ready");
  table.hidden = !others.length;
  const ready = plural(list.devices.length - others.length, "device");
  empty.textContent = list.probing ? "Checking devices…" : others.length ? "" : `None. ${ready} ready, nothing else was found.`;
  empty.hidden = !empty.textContent;
  body.replaceChildren(...others.map((device) => row(device, onAsk)));
}

/** @param {Device} device @param {(id: string) => void} onAsk */
function row(device, onAsk) {
  const ask = el("button", { type: "button", class: "small", click: () => onAsk(device.id) }, "Ask for it anyway",
    el("span", { class: "unseen" }, `: ${device.id}`));
  return el("tr", { role: "row" },
    el("th", { scope: "row", role: "rowheader", dir: "auto" }, device.id, el("span", { class: "quiet" }, ` ${device.name}`)),
    el("td", { role: "cell" }, el("span", { class: "state", "data-state": device.state }, device.state),
      device.layer ? el("p", { class: "quiet" }, `at: ${device.layer}`) : ""),
    el("td", { role: "cell", dir: "auto" }, prose(sentence(device.reason ?? ""))),
    el("td", { role: "cell", dir: "auto" }, el("p", {}, prose(sentence(device.remedy ?? ""))), ask));
}
