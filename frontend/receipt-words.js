// @ts-check
/** A job's receipt in words: what ran where, whether that was asked for, and how we know. */

import { capital, moment, percent, rateWords, sentence } from "./format.js";
import { speedOf } from "./speeds.js";

/**
 * @typedef {import("./types.js").Job} Job
 * @typedef {import("./types.js").Receipt} Receipt
 * @typedef {import("./types.js").Device} Device
 */

/** @type {Record<string, string>} */
const UNTIL = { error: ", until it failed", cancelled: ", until it was stopped", interrupted: ", until the server stopped" };

/** @param {string|null} id @param {Device[]} devices @returns {string} "Name (id)" */
export function deviceWords(id, devices) {
  if (!id) return "an unknown device";
  const name = devices.find((device) => device.id === id)?.name;
  return name && name !== id ? `${name} (${id})` : id;
}

/** @param {Receipt} receipt */
const wasAuto = (receipt) => receipt.asked.toLowerCase() === "auto";

/** @param {Job} job @returns {"proved"|"elsewhere"|"unknown"|"none"} */
export function verdict({ receipt, status }) {
  if (!receipt || (status !== "done" && !receipt.used)) return "none";
  if (!receipt.used) return "unknown";
  return receipt.fell_back ? "elsewhere" : "proved";
}

/**
 * What must not be overlooked: the job ran elsewhere, nobody knows where, or the CPU would have been faster.
 * @param {Job} job @param {Device[]} devices
 */
export function warning(job, devices) {
  const { receipt } = job;
  if (!receipt) return null;
  switch (verdict(job)) {
    case "elsewhere":
      return { title: "Not the device that was asked for", words:
        `Asked for ${deviceWords(receipt.asked, devices)}, ran on ${deviceWords(receipt.used, devices)}. ` +
        sentence(receipt.reason ?? "The reason is not known") };
    case "unknown":
      return { title: "Where this ran is not known", words:
        `Asked for ${deviceWords(receipt.asked, devices)}, but there is no evidence of the device that did the work. ` +
        sentence(receipt.placement?.evidence ?? "") };
    default:
      return slowerWords(job, devices);
  }
}

/** A device that was chosen for its speed and is slower than the processor. @param {Job} job @param {Device[]} devices */
function slowerWords({ receipt, model, status }, devices) {
  const cpu = devices.find((device) => device.id === "cpu");
  if (status !== "done" || !receipt?.rate || !receipt.used || receipt.used === "cpu" || !cpu || !model) return null;
  const known = speedOf(cpu, model);
  if (!known || known.unit !== receipt.rate.unit || known.value <= receipt.rate.value) return null;
  return { title: "Slower than the CPU", words: `${deviceWords(receipt.used, devices)} made this at ${rateWords(receipt.rate)}; `
    + `the CPU made ${rateWords(known)} with this model ${known.measured ? "when it was measured" : "in its last job"} (${moment(known.at)}).` };
}

/** @param {Receipt} receipt */
function placementWords({ used, placement }) {
  const { on_device: share = null, parts = [], evidence } = placement ?? {};
  const elsewhere = parts.filter((part) => part.where !== used && part.share_of_nodes)
    .map((part) => `${percent(part.share_of_nodes)} on ${part.where}`);
  const where = share === null ? "How much of the model lay there is not known"
    : `${percent(share)} of the model lay on ${used ?? "it"}${elsewhere.length ? `, ${elsewhere.join(", ")}` : ""}`;
  return `${where}. Evidence: ${sentence(evidence || "none")}`;
}

/** @param {Job} job @param {Device[]} devices @returns {string} */
export function headline(job, devices) {
  const { receipt } = job;
  if (!receipt) return "";
  const tried = receipt.attempts.map((attempt) => attempt.device).join(", then ");
  switch (verdict(job)) {
    case "none": return tried ? `Not finished. Tried on ${tried}.` : "No device took this job.";
    case "unknown": return "Ran, but where is not known";
    case "elsewhere": return `Ran on ${deviceWords(receipt.used, devices)}, not on ${receipt.asked}${UNTIL[job.status] ?? ""}`;
    default: return `Ran on ${deviceWords(receipt.used, devices)}, ${wasAuto(receipt) ? "chosen by Auto" : "as asked"}${UNTIL[job.status] ?? ""}`;
  }
}

/** @param {Job} job @returns {string} */
export function account(job) {
  const { receipt } = job;
  if (!receipt) return "";
  const how = [receipt.engine && `with ${receipt.engine}`, receipt.rate && `at ${rateWords(receipt.rate)}`].filter(Boolean);
  const says = [how.length ? capital(sentence(how.join(", "))) : ""];
  if (receipt.used) says.push(placementWords(receipt));
  if (receipt.resolved_reason && (wasAuto(receipt) || receipt.asked !== receipt.resolved)) {
    says.push(`Why ${receipt.resolved ?? "no device"} was chosen: ${sentence(receipt.resolved_reason)}`);
  }
  if (!receipt.fell_back && receipt.reason) says.push(sentence(receipt.reason));
  return says.filter(Boolean).join(" ");
}
