// @ts-check
/** The receipt as rows, and as text for a report. */

import { bytes, capital, moment, percent, plain, rateWords, seconds } from "./format.js";
import { account, headline } from "./receipt-words.js";

/**
 * @typedef {import("./types.js").Job} Job
 * @typedef {import("./types.js").Receipt} Receipt
 * @typedef {import("./types.js").Device} Device
 */

/** @param {Job} job @returns {[string, string][]} everything, as rows */
export function rows(job) {
  const { receipt } = job;
  if (!receipt) return [];
  const { memory, times, placement } = receipt;
  /** @type {[string, string][]} */
  const head = [
    ["Job", job.id], ["Model", plain(job.model)],
    ["Requested", receipt.asked], ["Resolved to", plain(receipt.resolved)], ["Reason for the choice", plain(receipt.resolved_reason)],
    ["Used", plain(receipt.used)], ["Fell back", plain(receipt.fell_back)], ["Reason", receipt.reason ?? "none"],
    ["Engine", plain(receipt.engine)], ["Runtime", plain(receipt.runtime)], ["Hardware", plain(receipt.hardware_id)],
    ["Share on the device", percent(placement?.on_device)], ["Evidence", plain(placement?.evidence)],
  ];
  for (const part of placement?.parts ?? []) {
    head.push([`Part on ${part.where}`, `${percent(part.share_of_nodes)} of the model, share of time ${percent(part.share_of_time)}`]);
  }
  receipt.attempts.forEach((attempt, index) => head.push([`Attempt ${index + 1}`,
    `${attempt.device}, ${plain(attempt.engine)}, ${moment(attempt.started_at)} to ${moment(attempt.ended_at)}, ${attempt.error ?? "no error"}`]));
  for (const part of receipt.parts ?? []) {
    head.push([`Variations ${part.variations?.join(", ")}`, `${plain(part.used)}, ${plain(part.engine)}, `
      + `${part.rate ? rateWords(part.rate) : "no rate"} in ${seconds(part.times.run_s)}${part.fell_back ? ", taken over" : ""}`]);
  }
  return [...head,
    ...audioRows(receipt),
    ["Rate", receipt.rate ? rateWords(receipt.rate) : plain(null)], ["Counts", plain(receipt.counts)],
    ["Time in the queue", seconds(times.queued_s)], ["Loading the model", seconds(times.load_s)],
    ["First token after", seconds(times.first_token_s)], ["Running", seconds(times.run_s)], ["Total", seconds(times.total_s)],
    ["Memory before", bytes(memory.before_bytes)], ["Peak memory", bytes(memory.peak_bytes)], ["Memory after", bytes(memory.after_bytes)],
    ...memoryRows(receipt),
    ["Batched", plain(receipt.batched)], ["Threads", plain(receipt.threads)], ["Seed", plain(receipt.seed)],
    ["Model file", plain(receipt.model_file)], ["Chat template", plain(receipt.chat_template)],
    ["Versions", plain(receipt.versions)], ["Worker process", plain(receipt.worker_pid)],
    ["Created", moment(job.created_at)], ["Ended", moment(job.ended_at)],
  ];
}

/** @param {Receipt} receipt @returns {[string, string][]} Return what was loaded, and where its memory is */
function memoryRows({ slots, context_tokens: tokens, fit }) {
  /** @type {[string, string][]} */
  const found = tokens == null ? [] : [["Context", `${tokens} tokens for each of ${plain(slots)}`]];
  if (fit) found.push(["Memory plan", fit.explanation]);
  if (fit?.retried) found.push(["Loaded again", fit.retried]);
  return found;
}

/** @param {Receipt} receipt @returns {[string, string][]} Return the time of each phase, and its speed for audio */
function audioRows({ audio_s, phases = {}, chosen = {} }) {
  const speed = (/** @type {number} */ value) => (audio_s && value ? ` (${rateWords({ value: audio_s / value, unit: "× real time" })})` : "");
  /** @type {[string, string][]} */
  const found = Object.entries(phases).map(([name, value]) => [capital(name), `${seconds(value)}${speed(value)}`]);
  if (audio_s) found.unshift(["Audio", seconds(audio_s)]);
  if (Object.keys(chosen).length) found.push(["Options used", plain(chosen)]);
  return found;
}

/** @param {Job} job @param {Device[]} devices Return the receipt as text for a report */
export function asText(job, devices) {
  const lines = rows(job).map(([name, value]) => `${name}: ${value}`);
  return [`Touchstone receipt: ${headline(job, devices)}`, account(job), "", ...lines, ""].join("\n");
}
