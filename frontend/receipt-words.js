// @ts-check
/** A job's receipt in words: what ran where, whether that was asked for, and how we know. */

import { bytes, capital, moment, percent, plain, rateWords, seconds, sentence } from "./format.js";

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
 * What must not be overlooked: the job ran elsewhere, or nobody knows where.
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
      return null;
  }
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

/** @param {Job} job @returns {[string, string][]} everything, as rows */
export function rows(job) {
  const { receipt } = job;
  if (!receipt) return [];
  const { memory, times, placement } = receipt;
  /** @type {[string, string][]} */
  const head = [
    ["Job", job.id], ["Model", plain(job.model)],
    ["Asked", receipt.asked], ["Resolved to", plain(receipt.resolved)], ["Because", plain(receipt.resolved_reason)],
    ["Used", plain(receipt.used)], ["Fell back", plain(receipt.fell_back)], ["Reason", receipt.reason ?? "none"],
    ["Engine", plain(receipt.engine)], ["Runtime", plain(receipt.runtime)], ["Hardware", plain(receipt.hardware_id)],
    ["Share on the device", percent(placement?.on_device)], ["Evidence", plain(placement?.evidence)],
  ];
  for (const part of placement?.parts ?? []) {
    head.push([`Part on ${part.where}`, `${percent(part.share_of_nodes)} of the model, share of time ${percent(part.share_of_time)}`]);
  }
  receipt.attempts.forEach((attempt, index) => head.push([`Attempt ${index + 1}`,
    `${attempt.device}, ${plain(attempt.engine)}, ${moment(attempt.started_at)} to ${moment(attempt.ended_at)}, ${attempt.error ?? "no error"}`]));
  return [...head,
    ...audioRows(receipt),
    ["Rate", receipt.rate ? rateWords(receipt.rate) : plain(null)], ["Counts", plain(receipt.counts)],
    ["Waited in the queue", seconds(times.queued_s)], ["Loading the model", seconds(times.load_s)],
    ["To the first token", seconds(times.first_token_s)], ["Running", seconds(times.run_s)], ["In all", seconds(times.total_s)],
    ["Memory before", bytes(memory.before_bytes)], ["Memory at most", bytes(memory.peak_bytes)], ["Memory after", bytes(memory.after_bytes)],
    ["Batched with others", plain(receipt.batched)], ["Threads", plain(receipt.threads)], ["Seed", plain(receipt.seed)],
    ["Model file", plain(receipt.model_file)], ["Chat template", plain(receipt.chat_template)],
    ["Versions", plain(receipt.versions)], ["Worker process", plain(receipt.worker_pid)],
    ["Created", moment(job.created_at)], ["Ended", moment(job.ended_at)],
  ];
}

/** @param {Receipt} receipt @returns {[string, string][]} how fast each phase was, where there is a sound to measure by */
function audioRows({ audio_s, phases = {}, chosen = {} }) {
  const speed = (/** @type {number} */ value) => (audio_s && value ? ` (${rateWords({ value: audio_s / value, unit: "× real time" })})` : "");
  /** @type {[string, string][]} */
  const found = Object.entries(phases).map(([name, value]) => [capital(name), `${seconds(value)}${speed(value)}`]);
  if (audio_s) found.unshift(["Audio", seconds(audio_s)]);
  if (Object.keys(chosen).length) found.push(["Made as", plain(chosen)]);
  return found;
}

/** @param {Job} job @param {Device[]} devices the receipt as text, to paste into a report */
export function asText(job, devices) {
  const lines = rows(job).map(([name, value]) => `${name}: ${value}`);
  return [`Touchstone receipt: ${headline(job, devices)}`, account(job), "", ...lines, ""].join("\n");
}
