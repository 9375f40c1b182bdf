// @ts-check
/** The machine: each piece of hardware with its devices, proofs and obstacles. */

import { showOthers } from "./device-table.js";
import { byId, el, foreign, keepFocus, prose, remedy } from "./dom.js";
import { bytes, moment, plain, seconds, sentence, small } from "./format.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {import("./types.js").DeviceList} DeviceList
 * @typedef {import("./types.js").Hardware} Hardware
 * @typedef {{ask: (id: string) => void, probe: (id: string) => void, measure: (id: string) => void,
 *   release: (id: string, model?: string) => void}} Acts
 */

const section = byId("hardware", HTMLElement), items = byId("hardware-items", HTMLElement);
const why = byId("missing", HTMLElement), answers = byId("missing-items", HTMLElement);
const KINDS = /** @type {Record<string, string>} */ ({ cpu: "processor", gpu: "graphics card", integrated: "integrated graphics",
  npu: "neural processor", emulated: "emulated, in software" });

/** @param {DeviceList} list @param {Acts} acts */
export function showMachine(list, acts) {
  const open = new Set([...items.querySelectorAll("details[open]")].map((one) => /** @type {HTMLElement} */ (one).dataset.device));
  showOthers(list, acts);
  section.hidden = !list.hardware.length;
  keepFocus(items, () => items.replaceChildren(...list.hardware.map((one) =>
    card(one, list.devices.filter((device) => device.hardware_id === one.id), acts))));
  for (const one of items.querySelectorAll("details")) one.open = open.has(one.dataset.device);
  why.hidden = !list.missing?.length;
  keepFocus(answers, () => answers.replaceChildren(...(list.missing ?? []).map(answer)));
}

/** @param {import("./types.js").MissingDevice} one */
function answer(one) {
  const lines = /** @type {const} */ ([["Bus", one.bus], ["Driver", one.driver], ["Runtimes", one.runtimes]]);
  return el("article", { "aria-label": `Why ${one.name} is missing` }, el("h3", {}, foreign(one.name)),
    el("dl", {}, ...lines.flatMap(([name, words]) => [el("dt", {}, name), el("dd", { dir: "auto" }, prose(words))])),
    el("p", { class: "hint", "data-kind": "warn" }, "First: ", ...remedy(sentence(one.remedy))));
}

/** @param {Hardware} one @param {Device[]} ways @param {Acts} acts */
function card(one, ways, acts) {
  const troubles = [...(one.hidden_by ?? []), one.reason && [sentence(one.reason), sentence(one.remedy ?? "")].join(" ")];
  return el("article", { class: "hardware", "data-kind": one.kind },
    el("h3", {}, foreign(one.name)),
    el("p", { class: "quiet" }, foreign(facts(one).join(" · "))),
    ...troubles.map((words) => words && el("p", { class: "hint", "data-kind": "warn" }, ...remedy(sentence(words)))),
    ways.length ? el("ul", { class: "ways" }, ...ways.map((device) => way(device, acts))) : el("p", { class: "quiet" }, "No device uses it."));
}

/** @param {Hardware} one Return the known facts; unknown ones are omitted */
function facts(one) {
  const memory = one.memory_bytes == null ? "" : `${bytes(one.memory_bytes)} ${one.kind === "cpu" ? "memory" : "of dedicated memory"}`;
  const threads = one.cores && one.threads ? `${one.cores} cores, ${one.threads} threads` : "";
  return [KINDS[one.kind] ?? one.kind, memory,
    one.memory_shared_bytes ? `${bytes(one.memory_shared_bytes)} shared with the machine` : "", threads,
    one.driver && `driver ${one.driver}${one.driver_date ? ` of ${one.driver_date}` : ""}`, one.architecture, one.id,
    one.pci_ids && `PCI ${one.pci_ids}`].filter(Boolean);
}

/** @param {Device} device @param {Acts} acts */
function way(device, acts) {
  const { proof, id } = device;
  const ready = device.state === "ready";
  const through = device.runtimes?.length ? ` through ${device.runtimes.join(" and ")}` : "";
  const words = ready && proof ? `proved ${moment(proof.at)}${through}: ${proof.operation} in ${proof.dtype}, largest error `
    + `${small(proof.max_abs_error)} (allowed ${small(proof.tolerance)})` : device.reason ?? "";
  return el("li", {}, el("strong", {}, foreign(id)), " ",
    el("span", { class: "state", "data-state": device.state }, device.state), " ",
    device.stage && el("span", { class: "quiet" }, `stage: ${device.stage} `), prose(sentence(words)),
    device.note ? el("p", { class: "quiet" }, prose(sentence(device.note))) : "",
    ...device.quarantined_models.map((model) => el("p", { class: "hint", "data-kind": "warn" },
      foreign(model), " is quarantined here: its worker died three times without finishing a job. ",
      act(`Try ${model} here again`, () => acts.release(id, model)))),
    proof && proofOf(device),
    el("div", { class: "actions" }, device.state === "probing" ? el("span", { class: "quiet" }, "Being checked…") : act("Probe again", () => acts.probe(id), id),
      ready && act("Measure", () => acts.measure(id), id),
      device.state === "quarantined" && act("Lift the quarantine", () => acts.release(id), id)));
}

/** @param {string} words @param {() => void} click @param {string} [of] for screen readers: what the button applies to */
export function act(words, click, of) {
  return el("button", { type: "button", class: "small", "data-key": `${words} ${of}`, click }, words, of && el("span", { class: "unseen" }, ` ${of}`));
}

/** Return the details of the proof, folded. @param {Device} device */
function proofOf({ id, proof }) {
  if (!proof) return null;
  const cells = (/** @type {(string|number|null|undefined)[]} */ values) => values.map((value) => el("td", {}, plain(value)));
  return el("details", { "data-device": id }, el("summary", {}, "Proof", el("span", { class: "unseen" }, ` of ${id}`)),
    el("p", { class: "quiet" }, `In process ${proof.pid}, ${moment(proof.at)}, ${seconds(proof.seconds)}`,
      proof.gflops ? `, ${small(proof.gflops)} GFLOPS in a float32 matrix product` : "", `. ${sentence(proof.evidence ?? "")} `,
      `Versions: ${plain(proof.versions)}.`),
    el("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": `Proof of ${id}` }, el("table", {},
      el("thead", {}, el("tr", {}, ...["Operation", "Type", "Largest error", "Allowed"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...(proof.checks ?? []).map((check) => el("tr", {}, ...cells(check.skipped || check.failed
        ? [check.operation, check.dtype, check.failed ? `wrong: ${check.failed}` : `not tested: ${check.skipped}`, ""]
        : [check.operation, check.dtype, small(check.max_abs_error ?? 0), small(check.tolerance ?? 0)])))))));
}
