// @ts-check
/** What is in the machine: each piece of hardware with every way in, and what hides or blocks it. */

import { showOthers } from "./device-table.js";
import { byId, el, foreign, prose } from "./dom.js";
import { bytes, moment, sentence, small } from "./format.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {import("./types.js").DeviceList} DeviceList
 * @typedef {import("./types.js").Hardware} Hardware
 */

const section = byId("hardware", HTMLElement), items = byId("hardware-items", HTMLElement);
const KINDS = /** @type {Record<string, string>} */ ({ cpu: "processor", gpu: "graphics card", integrated: "integrated graphics",
  npu: "neural processor", emulated: "emulated, in software" });

/** @param {DeviceList} list @param {(id: string) => void} onAsk asks for a device although it is not ready */
export function showMachine(list, onAsk) {
  showOthers(list, onAsk);
  section.hidden = !list.hardware.length;
  items.replaceChildren(...list.hardware.map((one) => card(one, list.devices.filter((device) => device.hardware_id === one.id))));
}

/** @param {Hardware} one @param {Device[]} ways */
function card(one, ways) {
  const troubles = [...(one.hidden_by ?? []), one.reason && [sentence(one.reason), sentence(one.remedy ?? "")].join(" ")];
  return el("article", { class: "hardware", "data-kind": one.kind },
    el("h3", {}, foreign(one.name)),
    el("p", { class: "quiet" }, foreign(facts(one).join(" · "))),
    ...troubles.map((words) => words && el("p", { class: "hint", "data-kind": "warn" }, prose(sentence(words)))),
    ways.length ? el("ul", { class: "ways" }, ...ways.map(way)) : el("p", { class: "quiet" }, "No device here uses it."));
}

/** @param {Hardware} one what is known of it; what is not known is left out */
function facts(one) {
  const memory = one.memory_bytes == null ? "" : `${bytes(one.memory_bytes)} ${one.kind === "cpu" ? "memory" : "of its own memory"}`;
  const threads = one.cores && one.threads ? `${one.cores} cores, ${one.threads} threads` : "";
  return [KINDS[one.kind] ?? one.kind, memory,
    one.memory_shared_bytes ? `${bytes(one.memory_shared_bytes)} shared with the machine` : "", threads,
    one.driver && `driver ${one.driver}${one.driver_date ? ` of ${one.driver_date}` : ""}`, one.architecture, one.id,
    one.pci_ids && `PCI ${one.pci_ids}`].filter(Boolean);
}

/** @param {Device} device */
function way(device) {
  const { proof } = device;
  const ready = device.state === "ready";
  const through = device.runtimes?.length ? ` through ${device.runtimes.join(" and ")}` : "";
  const words = ready && proof ? `proved ${moment(proof.at)}${through}: ${proof.operation} in ${proof.dtype}, largest error `
    + `${small(proof.max_abs_error)} (allowed ${small(proof.tolerance)})` : device.reason ?? "";
  return el("li", {}, el("strong", {}, foreign(device.id)), " ",
    el("span", { class: "state", "data-state": device.state }, device.state), " ", prose(sentence(words)),
    device.note ? el("p", { class: "quiet" }, prose(sentence(device.note))) : "");
}
