// @ts-check
/** The state of the service as loaded; `main.js` writes it, the other modules read it. */

/**
 * @typedef {import("./types.js").DeviceList} DeviceList
 * @typedef {import("./types.js").Model} Model
 * @typedef {import("./types.js").Job} Job
 */

export const state = {
  /** @type {DeviceList} */
  list: { devices: [], hardware: [], default: null, default_reason: null, probing: true },
  /** @type {Model[]} */
  models: [],
  /** The text model for the memory of this machine. @type {import("./types.js").Recommended|null} */
  recommended: null,
  /** The newest jobs, newest first. @type {Job[]} */
  jobs: [],
};

/** Return the list without constantly changing values, which would redraw the page all the time. @param {DeviceList} list */
export function steady(list) {
  const devices = list.devices.map((device) => ({ ...device, memory_free_bytes: null }));
  return JSON.stringify({ ...list, devices, loaded: null });
}
