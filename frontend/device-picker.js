// @ts-check
/** The select "Backend / Device": Auto, the ready devices, and what was asked for on purpose although it is not ready. */

import { byId, el, foreign, prose } from "./dom.js";
import { moment, sentence, small } from "./format.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {import("./types.js").DeviceList} DeviceList
 */

const select = byId("device", HTMLSelectElement), hint = byId("device-hint", HTMLElement);
const isReady = (/** @type {Device} */ device) => device.state === "ready";

/** @param {DeviceList} list @param {string} id @returns {Device|undefined} */
function find(list, id) {
  const name = id.toLowerCase();
  return list.devices.find((device) => device.id === name)
    ?? list.devices.find((device) => device.aliases.some((alias) => alias.toLowerCase() === name));
}

/** @param {Device} device @param {string} task */
function optionWords(device, task) {
  const notes = [device.kind === "emulated" && "emulated",
    device.tasks.length && !device.tasks.includes(task) && `does not run ${task}`].filter(Boolean);
  return `${device.id} · ${device.name}${notes.length ? ` (${notes.join(", ")})` : ""}`;
}

/** @param {DeviceList} list */
function autoWords(list) {
  if (list.default) return `Auto (now: ${list.default})`;
  return list.probing ? "Auto (devices are being checked)" : "Auto (no device is ready)";
}

/** @param {DeviceList} list @param {string} chosen @param {string} task */
export function showDevices(list, chosen, task) {
  const ready = list.devices.filter(isReady);
  const option = (/** @type {Device} */ device) => el("option", { value: device.id }, optionWords(device, task));
  const groups = list.hardware.map((hardware) => ({ label: hardware.name, devices: ready.filter((device) => device.hardware_id === hardware.id) }));
  const known = new Set(list.hardware.map((hardware) => hardware.id));
  groups.push({ label: "Hardware that does not say which it is", devices: ready.filter((device) => !known.has(device.hardware_id ?? "")) });
  const found = find(list, chosen);
  const asked = chosen.toLowerCase();
  const shown = asked === "auto" || ready.some((device) => device.id === asked);
  select.replaceChildren(
    el("option", { value: "auto" }, autoWords(list)),
    ...groups.filter((group) => group.devices.length).map((group) => el("optgroup", { label: group.label }, ...group.devices.map(option))),
    ...(shown ? [] : [el("optgroup", { label: "Asked for on purpose" },
      el("option", { value: chosen }, found && isReady(found) ? `${chosen} (another name of ${found.id})`
        : `${chosen} · NOT READY${found ? ` (${found.state})` : ""}`))]),
  );
  select.value = shown ? asked : chosen;
}

/** @param {DeviceList} list @param {string} policy what follows from the policy, in words */
function consequence(list, policy) {
  const cpu = list.devices.find((device) => device.id === "cpu");
  switch (policy) {
    case "never": return "By the rule below it runs nowhere else: the job will be refused with the reason.";
    case "any": return "By the rule below the next working device takes the job, and the result says so.";
    default: return cpu && isReady(cpu) ? "By the rule below the job will run on the CPU, and the result says so."
      : "By the rule below the job goes to the CPU, but that is not ready either: it will fail and say why.";
  }
}

/** @param {DeviceList} list @param {string} chosen @param {string} policy @param {string} model */
export function showDeviceHint(list, chosen, policy, model) {
  const device = find(list, chosen);
  hint.dataset.kind = "";
  if (chosen.toLowerCase() === "auto") {
    const state = list.default ? `Auto would take ${list.default}: ` : list.probing ? "Checking devices… " : "Auto has nothing to take. ";
    hint.replaceChildren(state, foreign(sentence(list.default_reason ?? "")));
    if (!list.default && !list.probing) hint.dataset.kind = "warn";
  } else if (device && isReady(device)) {
    const { proof } = device;
    hint.replaceChildren(proof ? `Proved ${moment(proof.at)}: ${proof.operation} in ${proof.dtype}, largest error `
      + `${small(proof.max_abs_error)} (allowed ${small(proof.tolerance)}).` : "Ready.");
    if (device.quarantined_models.includes(model)) {
      hint.append(" The chosen model is in quarantine on it, after crashes. ", consequence(list, policy));
      hint.dataset.kind = "warn";
    }
  } else if (device?.state === "probing") {
    hint.replaceChildren("This device is being checked; a job for it waits until that is done.");
  } else {
    hint.dataset.kind = "warn";
    const why = device ? [sentence(device.reason ?? ""), sentence(device.remedy ?? "")].join(" ") : "The server lists no such device.";
    hint.replaceChildren(el("strong", {}, foreign(chosen), " is not ready. "), prose(why), ` ${consequence(list, policy)}`);
  }
}
