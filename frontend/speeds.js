// @ts-check
/** The speed of a model on a device: measured, else from the last finished job. Never estimated. */

import { state } from "./state.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {{device: string, value: number, unit: string, at: string, engine: string|null, measured: boolean, low?: number|null,
 *   high?: number|null, streams?: number|null, together?: number|null}} Known
 */

/** Return the measurements of each engine, fastest first. @param {Device} device @param {string} model @returns {Known[]} */
function measured(device, model) {
  const found = (device.speed ?? []).filter((one) => one.model === model).map((one) => ({ ...one, device: device.id, measured: true }));
  return found.sort((a, b) => b.value - a.value);
}

/** @param {Device} device @param {string} model @returns {Known|null} of the fastest engine */
export function speedOf(device, model) {
  const [best] = measured(device, model);
  if (best) return best;
  for (const { model: used, status, receipt, ended_at } of state.jobs) {
    if (used !== model || status !== "done" || receipt?.used !== device.id || !receipt.rate || receipt.batched) continue;
    return { ...receipt.rate, device: device.id, at: ended_at ?? "", engine: receipt.engine, measured: false };
  }
  return null;
}

/** @param {string} model @returns {Known[]} of all devices and engines, fastest first */
export function speedsOf(model) {
  const found = state.list.devices.flatMap((device) => {
    const all = measured(device, model), last = all.length ? null : speedOf(device, model);
    return last ? [last] : all;
  });
  return found.sort((a, b) => b.value - a.value);
}
