// @ts-check
/** The status line of a job, from its events. */

import { capital, plural, rateWords, seconds, sentence, timeLeft } from "./format.js";
import { deviceWords } from "./receipt-words.js";

const SAID = ["form", "key", "mode", "bars", "seconds", "theme", "style"];

/** @param {number} position @param {number|null} [eta_s] time until it starts */
export function queueWords(position, eta_s) {
  return `Queued: ${position > 1 ? `number ${position}` : "next"} in line${timeLeft(eta_s)}.`;
}

/**
 * @param {string} name @param {any} data @param {import("./types.js").Device[]} devices
 * @returns {string} empty for events that the status line ignores
 */
export function stateWords(name, data, devices) {
  const on = data.device ? ` on ${deviceWords(data.device, devices)}` : "";
  switch (name) {
    case "queued": return queueWords(data.position);
    case "loading": return `Loading the model${on}…`;
    case "running": return `Generating${on}…`;
    default: return "";
  }
}

/** @param {import("./types.js").Progress} progress */
export function progressWords({ phase, done, total, unit, eta_s }) {
  const amount = total ? `: ${Math.round(done)} of ${Math.round(total)} ${unit}` : "";
  return capital(`${phase}${amount}${timeLeft(eta_s)}`);
}

/** @param {import("./types.js").Job} job @returns {string|null} */
export function promptOf({ request }) {
  const prompt = request.prompt ?? request.messages?.at(-1)?.content;
  return typeof prompt === "string" ? prompt : null;
}

/** Return a description of a job without a prompt: its options. @param {import("./types.js").Job} job */
export function optionWords({ request, task }) {
  const set = Object.entries(request.options ?? {}).filter(([name, value]) => value != null && value !== "any" && SAID.includes(name));
  return [capital(task), ...set.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)].join(", ");
}

/** @param {{from: string, to: string, reason: string}} data @param {import("./types.js").Device[]} devices */
export function fallbackWords({ from, to, reason }, devices) {
  return { title: "Not the requested device", words:
    `${deviceWords(from, devices)} could not run this job; it runs on ${deviceWords(to, devices)} instead. ${sentence(reason ?? "")}` };
}

/** @param {import("./types.js").Job} job @returns {string} */
export function endWords({ status: end, receipt, output: made }) {
  const tokens = receipt?.counts.tokens;
  const rate = receipt?.rate ? ` (${rateWords(receipt.rate)})` : "";
  const made_s = receipt?.audio_s ? `${seconds(receipt.audio_s)} of audio` : null;
  const figure = receipt && made_s ? `${made_s} in ${seconds(receipt.times.run_s)}${rate}` : receipt && tokens != null ? `${plural(tokens, "token")} in ${seconds(receipt.times.run_s)}${rate}`
    : receipt?.counts.runs ? `${plural(receipt.counts.runs, "run")} in ${seconds(receipt.times.run_s)}` : "no count";
  const cut = made?.finish_reason === "length" ? " The text was cut at max_tokens." : "";
  switch (end) {
    case "done": return `Done: ${figure}${receipt?.used ? ` on ${receipt.used}` : ""}.${cut}`;
    case "cancelled": return `Stopped: ${figure}. The output so far is kept.`;
    case "interrupted": return "Interrupted: the server stopped while this job was running. “Run again” starts it again.";
    default: return "Failed, see the reason above. “Run again” retries.";
  }
}
