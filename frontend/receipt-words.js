// @ts-check
/** A job's receipt as sentences: where it ran, whether that was requested, and the evidence. */

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
 * Return a warning if the job ran elsewhere or on an unknown device, or if the CPU would have been faster.
 * @param {Job} job @param {Device[]} devices
 */
export function warning(job, devices) {
  const { receipt } = job;
  if (!receipt) return null;
  switch (verdict(job)) {
    case "elsewhere":
      return { title: "Not the requested device", words:
        `Requested ${deviceWords(receipt.asked, devices)}, ran on ${deviceWords(receipt.used, devices)}. ` +
        sentence(receipt.reason ?? "The reason is unknown") };
    case "unknown":
      return { title: "The device is unknown", words:
        `Requested ${deviceWords(receipt.asked, devices)}, but there is no evidence of the device that ran it. ` +
        sentence(receipt.placement?.evidence ?? "") };
    default:
      return slowerWords(job, devices);
  }
}

/** Return a warning if the device was slower than the CPU. @param {Job} job @param {Device[]} devices */
function slowerWords({ receipt, model, status }, devices) {
  const cpu = devices.find((device) => device.id === "cpu");
  if (status !== "done" || !receipt?.rate || !receipt.used || receipt.used === "cpu" || !cpu || !model) return null;
  const known = speedOf(cpu, model);
  if (!known || known.unit !== receipt.rate.unit || known.value <= receipt.rate.value) return null;
  return { title: "Slower than the CPU", words: `${deviceWords(receipt.used, devices)} ran this at ${rateWords(receipt.rate)}; `
    + `the CPU reached ${rateWords(known)} with this model ${known.measured ? "in a measurement" : "in its last job"} (${moment(known.at)}).` };
}

/** @param {Receipt} receipt */
function placementWords({ used, placement }) {
  const { on_device: share = null, parts = [], evidence } = placement ?? {};
  const elsewhere = parts.filter((part) => part.where !== used && part.share_of_nodes)
    .map((part) => `${percent(part.share_of_nodes)} on ${part.where}`);
  const where = share === null ? "The share of the model on the device is unknown"
    : `${percent(share)} of the model was on ${used ?? "it"}${elsewhere.length ? `, ${elsewhere.join(", ")}` : ""}`;
  return `${where}. Evidence: ${sentence(evidence || "none")}`;
}

/** @param {Job} job @param {Device[]} devices @returns {string} */
export function headline(job, devices) {
  const { receipt } = job;
  if (!receipt) return "";
  const tried = receipt.attempts.map((attempt) => attempt.device).join(", then ");
  switch (verdict(job)) {
    case "none": return tried ? `Not finished. Tried on ${tried}.` : "No device ran this job.";
    case "unknown": return "Ran on an unknown device";
    case "elsewhere": return `Ran on ${deviceWords(receipt.used, devices)}, not on ${receipt.asked}${UNTIL[job.status] ?? ""}`;
    default: return `Ran on ${deviceWords(receipt.used, devices)}, ${wasAuto(receipt) ? "chosen by Auto" : "as requested"}${UNTIL[job.status] ?? ""}`;
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
