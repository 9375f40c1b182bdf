// @ts-check
/** The list of jobs: search, open, compare, delete; includes jobs of other tabs and programs. */

import * as api from "./api.js";
import { compare } from "./comparison.js";
import { byId, el, keepFocus, twice } from "./dom.js";
import { moment, plural } from "./format.js";
import { JobList } from "./job-list.js";
import { optionWords, progressWords, promptOf } from "./job-words.js";

/** @typedef {import("./types.js").Job} Job */

const rows = byId("jobs", HTMLElement), said = byId("jobs-said", HTMLElement), more = byId("jobs-more", HTMLButtonElement);
const search = byId("job-search", HTMLInputElement), status = byId("job-status", HTMLSelectElement), task = byId("job-task", HTMLSelectElement);
const SHOWN_WORDS = 12, FIRST = 8, STEP = 40, WAIT_MS = 300;

export class JobsBoard {
  list = new JobList();
  #shown = FIRST;
  #timer = 0;
  /** One or two jobs to compare. @type {string[]} */
  #ticked = [];
  /** Id of the job shown in detail. */
  current = "";

  /** @param {{open: (id: string) => void, gone: (id: string) => void, fail: (problem: import("./types.js").Problem) => void, fresh: () => void}} on */
  constructor(on) {
    this.on = on;
    byId("job-filters", HTMLFormElement).addEventListener("submit", (event) => event.preventDefault());
    search.addEventListener("input", () => this.#soon(() => this.#find()));
    for (const select of [status, task]) select.addEventListener("change", () => this.#find());
    more.addEventListener("click", async () => {
      this.#shown += STEP;
      if (this.#shown > this.list.found.length) await this.#try(() => this.list.older());
      this.show();
    });
  }

  /** @param {() => void} act */
  #soon(act) {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(act, WAIT_MS);
  }

  /** @param {() => Promise<unknown>} act lost connections are shown in the health line */
  async #try(act) {
    try { await act(); } catch (error) { if (!["unreachable", "unauthorized"].includes(api.asProblem(error).code)) this.on.fail(api.asProblem(error)); }
  }

  async refresh() {
    await this.#try(() => this.list.refresh());
    this.on.fresh();
    this.show();
  }

  async #find() {
    this.#shown = FIRST;
    said.textContent = "Looking…";
    await this.#try(() => this.list.find({ words: search.value.trim(), status: status.value, task: task.value }));
    this.show();
  }

  /** @param {string} event @param {any} data */
  hear(event, data) {
    if (this.list.hear(event, data)) this.#soon(() => this.refresh());
    else if (data.job_id) this.#live(data.job_id);
  }

  /** Update one row in place, so that fifty events per second are cheap. @param {string} id */
  #live(id) {
    const job = this.list.jobs.find((one) => one.id === id), button = rows.querySelector(`[data-job="${CSS.escape(id)}"]`);
    if (!job || !button) return;
    const pill = /** @type {HTMLElement} */ (button.querySelector(".state")), words = button.querySelector(".live");
    pill.textContent = pill.dataset.state = job.status;
    if (words) words.textContent = liveWords(job);
  }

  show() {
    const { found } = this.list, { words, status: state, task: kind } = this.list.filter;
    keepFocus(rows, () => rows.replaceChildren(...found.slice(0, this.#shown).map((job) => this.#row(job))));
    more.hidden = this.#shown >= found.length && !this.list.hasOlder;
    const filtered = words || state || kind;
    said.textContent = filtered ? (found.length ? `${plural(found.length, "job")} found${this.list.hasOlder ? " so far" : ""}.` : "No jobs found.")
      : found.length ? "" : "Jobs that you start appear here.";
  }

  /** @param {Job} job */
  #row(job) {
    const words = firstWords(job), gone = el("button", { type: "button", class: "small", "data-key": `delete-${job.id}` }, "Delete", el("span", { class: "unseen" }, ` ${words}`));
    twice(gone, () => this.#forget(job.id));
    const box = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", "data-key": `tick-${job.id}`, "aria-label": `Compare: ${words}` }));
    box.checked = this.#ticked.includes(job.id);
    box.addEventListener("change", () => this.#tick(job.id, box.checked));
    return el("li", {}, el("label", { class: "tick" }, box, "Compare"),
      el("button", { type: "button", "data-job": job.id, "data-key": job.id, "aria-current": job.id === this.current ? "true" : null, click: () => this.on.open(job.id) },
        el("span", { class: "state", "data-state": job.status }, job.status),
        el("span", { class: "words", dir: "auto" }, words),
        el("span", { class: "quiet" }, `${where(job)} · ${moment(job.created_at)} `, el("span", { class: "live" }, liveWords(job)))),
      api.isOver(job) ? gone : null);
  }

  /** @param {string} id @param {boolean} on */
  #tick(id, on) {
    this.#ticked = on ? [...this.#ticked, id].slice(-2) : this.#ticked.filter((one) => one !== id);
    this.show();
    if (this.#ticked.length === 2) this.#try(() => compare(this.#ticked));
    else byId("comparison", HTMLElement).hidden = true;
    if (this.#ticked.length === 1) said.textContent = "Select another job to compare the two.";
  }

  /** @param {string} id */
  async #forget(id) {
    await this.#try(async () => {
      await api.forget(id);
      this.list.drop(id);
      this.#ticked = this.#ticked.filter((one) => one !== id);
      this.on.gone(id);
      search.focus();
    });
    this.show();
  }
}

/** @param {Job} job */
function firstWords(job) {
  const words = (promptOf(job) || optionWords(job)).trim().slice(0, 200).split(/\s+/);
  return words.slice(0, SHOWN_WORDS).join(" ") + (words.length > SHOWN_WORDS ? " …" : "");
}

/** @param {Job} job */
function where({ receipt, request, model }) {
  if (!receipt) return request.device ? `requested ${request.device}` : model ?? "";
  if (!receipt.used) return "device unknown";
  return receipt.fell_back ? `${receipt.used}, not ${receipt.asked}` : `${receipt.used}`;
}

/** @param {Job} job Return its current progress, or the reason of its end */
function liveWords(job) {
  if (!api.isOver(job)) return job.progress && job.progress.phase !== "queue" ? progressWords(job.progress) : "";
  return job.status === "interrupted" ? "the server stopped during the job" : job.error ? job.error.title : "";
}
