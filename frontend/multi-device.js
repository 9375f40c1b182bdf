// @ts-check
/** Several devices for the variations of one job: which ones, and how. Shown if a model has variations. */

import { byId, el } from "./dom.js";

/** @typedef {import("./types.js").DeviceList} DeviceList @typedef {import("./types.js").Schema} Schema */

const box = byId("sharing", HTMLDetailsElement), root = byId("sharing-devices", HTMLElement), spread = byId("spread", HTMLSelectElement);
/** @type {Set<string>} */
const chosen = new Set();

/** @param {() => void} onChange */
export function setUpSharing(onChange) {
  root.addEventListener("change", (event) => {
    const { value, checked } = /** @type {HTMLInputElement} */ (event.target);
    if (checked) chosen.add(value); else chosen.delete(value);
    onChange();
  });
  spread.addEventListener("change", onChange);
}

/** @param {DeviceList} list @param {string} task @param {Schema|undefined} schema the options of the model */
export function showSharing(list, task, schema) {
  const able = list.devices.filter((device) => device.state === "ready" && device.tasks.includes(task)).map((device) => device.id);
  box.hidden = !schema?.properties?.variations || able.length < 2;
  for (const id of chosen) if (!able.includes(id)) chosen.delete(id);
  const shown = [...root.querySelectorAll("input")].map((input) => input.value);
  if (shown.join() === able.join()) return; // nothing may move while the user selects
  root.replaceChildren(...able.map((id) => el("label", {},
    el("input", { type: "checkbox", value: id, checked: chosen.has(id) }), ` ${id}`)));
}

/** Return the part of the request; null with fewer than two devices. */
export const sharedAmong = () => (box.hidden || chosen.size < 2 ? null : { devices: [...chosen], spread: spread.value });
