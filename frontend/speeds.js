// @ts-check
/** How fast a model was on a device of this machine: by a measurement, else by the last finished job. Never reckoned. */

import { state } from "./state.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {{device: string, value: number, unit: string, at: string, engine: string|null, measured: boolean}} Known
 */

/** @param {Device} device @param {string} model @returns {Known|null} */
export function speedOf(device, model) {
  const [measured] = (device.speed ?? []).filter((one) => one.model === model).sort((a, b) => b.at.localeCompare(a.at));
  if (measured) return { ...measured, device: device.id, measured: true };
  for (const { model: used, status, receipt, ended_at } of state.jobs) {
    if (used !== model || status !== "done" || receipt?.used !== device.id || !receipt.rate || receipt.batched) continue;
    return { ...receipt.rate, device: device.id, at: ended_at ?? "", engine: receipt.engine, measured: false };
  }
  return null;
}

/** @param {string} model @returns {Known[]} of all devices, the fastest first */
export function speedsOf(model) {
  const found = state.list.devices.map((device) => speedOf(device, model)).filter((one) => one !== null);
  return found.sort((a, b) => b.value - a.value);
}
