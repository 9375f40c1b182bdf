// @ts-check
/** The loaded jobs, newest first: updated by events, older ones on demand. */

import * as api from "./api.js";
import { optionWords, promptOf } from "./job-words.js";
import { state } from "./state.js";

/** @typedef {import("./types.js").Job} Job @typedef {{words: string, status: string, task: string}} Filter */

const PAGE = 50, WHOLE_PAGE = 200;
const MAINTENANCE = ["download", "load", "unload", "convert", "install", "verify", "update", "bench"];

export class JobList {
  /** @type {Job[]} */
  jobs = [];
  /** Start of the next page; null at the end. @type {string|null} */
  #next = null;
  #asked = 0;
  /** @type {Filter} */
  filter = { words: "", status: "", task: "" };

  /** @param {number} limit @param {string} [before] */
  async #page(limit, before) {
    const query = new URLSearchParams({ limit: String(limit) });
    for (const [name, value] of Object.entries({ status: this.filter.status, task: this.filter.task === "all" ? "" : this.filter.task, before })) if (value) query.set(name, value);
    return api.jobs(String(query));
  }

  /** Load the newest page and keep loaded older ones. @returns {Promise<boolean>} false if a later call was faster */
  async refresh() {
    const number = ++this.#asked;
    const { jobs, next } = await this.#page(PAGE);
    if (number !== this.#asked) return false;
    const last = jobs.at(-1)?.id ?? "";
    const older = next ? this.jobs.filter((job) => job.id < last) : [];
    if (!older.length) this.#next = next;
    this.jobs = [...jobs, ...older];
    if (!this.filter.status && !(this.filter.task && this.filter.task !== "all")) state.jobs = this.jobs;
    return true;
  }

  /** @param {Filter} filter */
  async find(filter) {
    const anew = filter.status !== this.filter.status || filter.task !== this.filter.task;
    this.filter = filter;
    if (anew) { this.jobs = []; await this.refresh(); }
    const number = this.#asked;
    while (this.filter.words && this.#next && number === this.#asked) await this.older(WHOLE_PAGE); // a search covers all jobs
  }

  get hasOlder() { return this.#next !== null; }

  /** @param {number} limit */
  async older(limit = PAGE) {
    if (!this.#next) return;
    const number = this.#asked, { jobs, next } = await this.#page(limit, this.#next);
    if (number !== this.#asked) return;
    this.#next = next;
    this.jobs.push(...jobs);
  }

  /** Return the jobs that match the search; by default only those that generate something. */
  get found() {
    const words = this.filter.words.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = this.filter.task ? this.jobs : this.jobs.filter((job) => !MAINTENANCE.includes(job.task));
    return words.length ? wanted.filter((job) => { const text = textOf(job); return words.every((word) => text.includes(word)); }) : wanted;
  }

  /** @param {string} event @param {any} data @returns {boolean} whether the list has to be reloaded */
  hear(event, data) {
    const job = this.jobs.find(({ id }) => id === data.job_id);
    if (event === "progress" && job) job.progress = data;
    else if (job && (event === "loading" || event === "running")) job.status = event;
    else return event !== "artifact" && event !== "progress";
    return false;
  }

  /** @param {string} id */
  drop(id) { this.jobs = this.jobs.filter((job) => job.id !== id); }
}

/** Return the text that a search covers. @param {Job} job */
function textOf(job) {
  return [promptOf(job) ?? "", optionWords(job), job.model, job.status, job.task, job.id, job.request.device, job.receipt?.used, job.error?.detail]
    .join(" ").toLowerCase();
}
