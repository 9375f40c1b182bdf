// @ts-check
/** The select "Backend / Device": Auto, the ready devices, and a selected device that is not ready. */

import { byId, el, foreign, prose } from "./dom.js";
import { bytes, moment, plural, rateWords, sentence, small } from "./format.js";
import { speedOf } from "./speeds.js";

/**
 * @typedef {import("./types.js").Device} Device
 * @typedef {import("./types.js").DeviceList} DeviceList
 * @typedef {import("./types.js").Model} Model
 */

const select = byId("device", HTMLSelectElement), hint = byId("device-hint", HTMLElement), count = byId("device-count", HTMLElement);
const isReady = (/** @type {Device} */ device) => device.state === "ready";

/** @param {DeviceList} list @param {string} id @returns {Device|undefined} */
function find(list, id) {
  const name = id.toLowerCase();
  return list.devices.find((device) => device.id === name)
    ?? list.devices.find((device) => device.aliases.some((alias) => alias.toLowerCase() === name));
}

/**
 * Return the text of an entry: id, engines for the model, free memory, speed.
 * @param {Device} device @param {string} hardware the name of its group, not repeated
 * @param {string} task @param {Model|undefined} model
 */
function optionWords(device, hardware, task, model) {
  const engines = (device.engines ?? []).filter((engine) => model?.engines?.includes(engine));
  const speed = model && speedOf(device, model.id);
  const notes = [device.kind === "emulated" && "emulated", !able(device, task) && `does not run ${task}`].filter(Boolean);
  const facts = [device.id, device.name !== hardware && device.name, engines.join(" or "),
    device.memory_free_bytes != null && `${bytes(device.memory_free_bytes)} free`,
    speed && `${rateWords(speed)}${speed.measured ? "" : " in the last job"}`].filter(Boolean);
  return `${facts.join(" · ")}${notes.length ? ` (${notes.join(", ")})` : ""}`;
}

/** @param {Device} device @param {string} task */
const able = ({ tasks }, task) => !tasks.length || tasks.includes(task);

/** Return the device that Auto would use for the model, with the reason. @param {DeviceList} list @param {string|undefined} model */
function choice(list, model) {
  const found = list.default ? list.auto?.[model ?? ""] : undefined;
  return found?.device ? found : { device: list.default, reason: list.default_reason ?? "" };
}

/** @param {DeviceList} list @param {string|undefined} model */
function autoWords(list, model) {
  if (list.default) return `Auto (now: ${choice(list, model).device})`;
  return list.probing ? "Auto (devices are being checked)" : "Auto (no device is ready)";
}

/** Replace the entries only if needed: a change of a figure must not close an open list. @param {HTMLElement[]} entries */
function fill(entries) {
  const values = (/** @type {HTMLSelectElement} */ of) => [...of.options].map(({ value }) => value).join();
  const made = /** @type {HTMLSelectElement} */ (el("select", {}, ...entries));
  const same = values(made) === values(select) && (made.textContent === select.textContent || document.activeElement === select);
  if (!same) select.replaceChildren(...made.childNodes);
}

/** @param {DeviceList} list @param {string} chosen @param {string} task @param {Model|undefined} model */
export function showDevices(list, chosen, task, model) {
  const ready = list.devices.filter(isReady);
  const option = (/** @type {Device} */ device, /** @type {string} */ name) =>
    el("option", { value: device.id }, optionWords(device, name, task, model));
  const groups = list.hardware.map((hardware) => ({ label: hardware.name, devices: ready.filter((device) => device.hardware_id === hardware.id) }));
  const known = new Set(list.hardware.map((hardware) => hardware.id));
  groups.push({ label: "Unidentified hardware", devices: ready.filter((device) => !known.has(device.hardware_id ?? "")) });
  const found = find(list, chosen);
  const asked = chosen.toLowerCase();
  const shown = asked === "auto" || ready.some((device) => device.id === asked);
  fill([
    el("option", { value: "auto" }, autoWords(list, model?.id)),
    ...groups.filter((group) => group.devices.length).map((group) => el("optgroup", { label: group.label },
      ...group.devices.map((device) => option(device, group.label)))),
    ...(shown ? [] : [el("optgroup", { label: "Selected, but not ready" },
      el("option", { value: chosen }, found && isReady(found) ? `${chosen} (alias of ${found.id})`
        : `${chosen} · NOT READY${found ? ` (${found.state})` : ""}`))]),
  ]);
  select.value = shown ? asked : chosen;
  const others = list.devices.length - ready.length;
  count.replaceChildren(list.probing && !ready.length ? "Checking devices…" : `${ready.length} of ${plural(list.devices.length, "device")} `
    + `${ready.length === 1 ? "works" : "work"} here${ready.length ? `: ${ready.map((device) => device.id).join(", ")}` : ""}. `,
  ...(others ? [el("a", { href: "#unready" }, others === 1 ? "Why the other does not work, and how to fix it" : "Why the others do not work, and how to fix it")] : []));
}

/** @param {DeviceList} list @param {string} policy Return what the policy will do, as a sentence */
function consequence(list, policy) {
  const cpu = list.devices.find((device) => device.id === "cpu");
  switch (policy) {
    case "never": return "With the rule below the job will be refused with the reason.";
    case "any": return "With the rule below the job will run on the next ready device, and the result reports it.";
    default: return cpu && isReady(cpu) ? "With the rule below the job will run on the CPU, and the result reports it."
      : "With the rule below the job would run on the CPU, but the CPU is not ready either: it will fail with the reason.";
  }
}

/** @param {Device} device @param {string} model Return free memory and speed: entries of a narrow list are cut off before them */
function offerWords(device, model) {
  const speed = speedOf(device, model);
  const free = device.memory_free_bytes == null ? "" : ` ${bytes(device.memory_free_bytes)} of memory free.`;
  return `${free}${speed ? ` ${rateWords(speed)} with this model, ${speed.measured ? "measured" : "in the last job"} ${moment(speed.at)}.` : ""}`;
}

/** @param {DeviceList} list @param {string} chosen @param {string} policy @param {Model|undefined} model */
export function showDeviceHint(list, chosen, policy, model) {
  const device = find(list, chosen);
  hint.dataset.kind = "";
  if (chosen.toLowerCase() === "auto") {
    const { device: taken, reason } = choice(list, model?.id);
    const state = taken ? `Auto would use ${taken}: ` : list.probing ? "Checking devices… " : "Auto has no ready device. ";
    hint.replaceChildren(state, foreign(sentence(reason)));
    if (!list.default && !list.probing) hint.dataset.kind = "warn";
  } else if (device && isReady(device)) {
    const { proof } = device;
    hint.replaceChildren(proof ? `Proved ${moment(proof.at)}: ${proof.operation} in ${proof.dtype}, largest error `
      + `${small(proof.max_abs_error)} (allowed ${small(proof.tolerance)}).` : "Ready.", offerWords(device, model?.id ?? ""));
    const fit = model?.fits?.find(({ device: id }) => id === device.id);
    if (fit?.engine_reason) hint.append(" ", foreign(fit.engine), " would run it. ", prose(fit.engine_reason));
    if (model && device.quarantined_models.includes(model.id)) {
      hint.append(" The selected model is quarantined on it after crashes. ", consequence(list, policy));
      hint.dataset.kind = "warn";
    }
  } else if (device?.state === "probing") {
    hint.replaceChildren("This device is being checked; a job for it waits for the result.");
  } else {
    hint.dataset.kind = "warn";
    const why = device ? [sentence(device.reason ?? ""), sentence(device.remedy ?? "")].join(" ") : "The server lists no such device.";
    hint.replaceChildren(el("strong", {}, foreign(chosen), " is not ready. "), prose(why), ` ${consequence(list, policy)}`);
  }
}
