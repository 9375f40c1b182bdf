// @ts-check
/** The body of POST /api/generate for the form, and for the follow-ups of a finished job. */

import { inputsPlace, takesInputs } from "./inputs-form.js";
import { schemaOf } from "./lyrics.js";
import { chosenOptions } from "./options-form.js";
import { settings } from "./settings.js";
import { sharedAmong } from "./multi-device.js";
import { soundPlace, takesSound } from "./sound-file.js";

/** @typedef {import("./types.js").Job} Job @typedef {import("./types.js").Model} Model */

const KEPT = ["task", "model", "device", "devices", "spread", "fallback", "engine", "prompt", "messages"];
const SEED_LIMIT = 2 ** 32 - 1;

/** @param {Model|undefined} model @param {string} words */
export function requestOf(model, words) {
  const options = chosenOptions(schemaOf(model, settings.task), settings.options);
  return { task: settings.task, ...(model && { model: model.id }), ...(sharedAmong() ?? { device: settings.device }), fallback: settings.fallback,
    ...soundPlace(), ...inputsPlace(settings.task),
    ...(words.trim() && !takesSound(settings.task) && !takesInputs(settings.task) && { prompt: words }), ...(Object.keys(options).length && { options }) };
}

/** Whether the request can be repeated with another seed. @param {Job} job */
export const hasSeed = (job) => !takesInputs(job.task) && "seed" in (job.request.options ?? {});

/** @param {Job} job @returns {Record<string, unknown>} Return the same request with a new seed */
export function withAnotherSeed(job) {
  const { request } = job;
  const kept = KEPT.filter((name) => request[name] != null).map((name) => [name, request[name]]);
  const seed = Math.floor(Math.random() * SEED_LIMIT);
  const options = Object.entries(request.options).filter(([, value]) => value !== null);
  return { ...Object.fromEntries(kept), options: { ...Object.fromEntries(options), seed } };
}
