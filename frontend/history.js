// @ts-check
/** The last jobs, newest first; one click shows a job again, or follows it if it still runs. */

import * as api from "./api.js";
import { byId, el } from "./dom.js";
import { moment } from "./format.js";
import { optionWords, promptOf } from "./job-words.js";

/** @typedef {import("./types.js").Job} Job */

const list = byId("jobs", HTMLElement), empty = byId("jobs-empty", HTMLElement);
const SHOWN_WORDS = 12;
const MAKING = ["text", "lyrics", "music"];

/** @param {Job} job */
function firstWords(job) {
  const words = (promptOf(job) || optionWords(job)).trim().slice(0, 200).split(/\s+/);
  return words.slice(0, SHOWN_WORDS).join(" ") + (words.length > SHOWN_WORDS ? " …" : "");
}

/** @param {Job} job */
function where({ receipt, request }) {
  if (!receipt) return `asked ${request.device ?? "auto"}`;
  if (!receipt.used) return "device not known";
  return receipt.fell_back ? `${receipt.used}, not ${receipt.asked}` : `${receipt.used}`;
}

/** @param {(id: string) => void} onOpen @param {string|undefined} current the job that is shown now */
export async function refreshHistory(onOpen, current) {
  let jobs;
  try { ({ jobs } = await api.jobs("limit=10")); } catch { return; } // the health line says that the server is away
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.job : undefined;
  const shown = jobs.filter((/** @type {Job} */ job) => MAKING.includes(job.task));
  empty.hidden = shown.length > 0;
  list.replaceChildren(...shown.map((/** @type {Job} */ job) => el("li", {},
    el("button", { type: "button", "data-job": job.id, "aria-current": job.id === current ? "true" : null, click: () => onOpen(job.id) },
      el("span", { class: "state", "data-state": job.status }, job.status),
      el("span", { class: "words", dir: "auto" }, firstWords(job)),
      el("span", { class: "quiet" }, `${where(job)} · ${moment(job.created_at)}`)))));
  if (focused) /** @type {HTMLElement|null} */ (list.querySelector(`[data-job="${CSS.escape(focused)}"]`))?.focus();
}
