// @ts-check
/** Start, follow, stop and repeat the job that the page shows. */

import * as api from "./api.js";
import { byId, twice } from "./dom.js";
import { followJob } from "./job-stream.js";
import { withAnotherSeed } from "./request.js";
import { shownJob } from "./settings.js";
import { anotherTune, soundOf } from "./tunes.js";

/** @typedef {import("./types.js").Job} Job */

const generateButton = byId("generate", HTMLButtonElement), stopButton = byId("stop", HTMLButtonElement);
const rerunOn = byId("rerun-on", HTMLSelectElement);
const again = ["rerun", "reseed", "vary", "continue", "forget"].map((id) => byId(id, HTMLButtonElement));
const [rerunButton, reseedButton, varyButton, continueButton, forgetButton] = again;

export class JobControl {
  /** @type {Job|null} */
  job = null;
  active = false;
  #stopWanted = false;
  #unfollow = () => {};

  /** @param {import("./job-view.js").JobView} view @param {() => void} onChange called when a job was sent, started or ended */
  constructor(view, onChange) {
    this.view = view;
    this.onChange = onChange;
    stopButton.addEventListener("click", () => this.stop());
    rerunButton.addEventListener("click", () => {
      const id = this.job?.id;
      if (id) this.#begin(() => api.rerun(id, rerunOn.value || undefined));
    });
    reseedButton.addEventListener("click", () => {
      const job = this.job;
      if (job) this.#begin(() => api.generate(withAnotherSeed(job)));
    });
    varyButton.addEventListener("click", () => this.#goOn("vary"));
    continueButton.addEventListener("click", () => this.#goOn("continue"));
    twice(forgetButton, () => this.#forget());
  }

  /** @param {() => Promise<Record<string, unknown>>} complete returns the request after the upload of its files */
  generate(complete) { return this.#begin(async () => api.generate(await complete())); }

  /** @param {string} id an ended or active job */
  async open(id) {
    try { this.#show(await api.job(id)); } catch (error) {
      const problem = api.asProblem(error);
      if (problem.status === 404) shownJob.clear();
      if (problem.code !== "unauthorized" && problem.code !== "unreachable") this.view.fail(problem); // shown elsewhere
    }
  }

  async stop() {
    if (!this.active) return;
    this.view.say("Stopping…");
    this.#stopWanted = !this.job; // pressed before the server returned the job: cancelled as soon as it has
    if (!this.job) return;
    try { await api.cancel(this.job.id); } catch (error) {
      if (api.asProblem(error).code !== "job_finished") this.view.fail(api.asProblem(error));
    }
  }

  /** @param {"vary"|"continue"} how */
  #goOn(how) {
    const job = this.job, sound = job && soundOf(job);
    if (sound) this.#begin(async () => api.generate(anotherTune(job, await api.text(sound.url), how)));
  }

  async #forget() {
    const { job } = this;
    if (!job || this.active) return;
    try { await api.forget(job.id); } catch (error) { this.view.fail(api.asProblem(error)); return; }
    this.close(job.id);
    this.onChange();
  }

  /** Stop showing a deleted job. @param {string} id */
  close(id) {
    if (this.job?.id !== id) return;
    this.job = null;
    shownJob.clear();
    this.view.empty("The job was deleted.");
  }

  /** @param {() => Promise<Job>} start */
  async #begin(start) {
    if (this.active) return;
    this.#setActive(true); // before the response, so that a second press does not start a second job
    this.#stopWanted = false;
    this.#unfollow();
    this.job = null;
    this.view.clear();
    this.view.say("Sending…");
    try { this.#show(await start()); } catch (error) {
      this.#setActive(false);
      this.view.fail(api.asProblem(error), true);
    }
    if (this.#stopWanted) this.stop();
  }

  /** @param {Job} job */
  #show(job) {
    this.#unfollow();
    this.job = job;
    shownJob.set(job.id);
    this.view.begin(job);
    if (api.isOver(job)) { this.#end(job, false); return; }
    this.#setActive(true);
    this.#unfollow = followJob(job.id, { event: (name, data) => this.#receive(name, data), link: (link) => this.view.link(link),
      lost: (problem) => { this.#setActive(false); shownJob.clear(); this.view.fail(problem); } });
    this.onChange();
  }

  /** @param {string} name @param {any} data */
  async #receive(name, data) {
    if (name === "settled") this.#end(data, false);
    else if (name === "done" || name === "cancelled") this.#end(data, true);
    else if (name === "error" || name === "interrupted") {
      let job = { .../** @type {Job} */ (this.job), status: name, error: data }, seen = true;
      try {
        job = await api.job(job.id);
        seen = name === "error"; // a killed server may have sent more than it stored
      } catch { /* its receipt stands in the job alone; the event says what matters */ }
      if (this.job?.id === job.id) this.#end(job, seen);
    } else this.view.event(name, data);
    if (name === "running") this.onChange();
  }

  /** @param {Job} job @param {boolean} seen */
  #end(job, seen) {
    this.job = job;
    this.#setActive(false);
    this.view.end(job, seen);
    this.onChange();
  }

  /** @param {boolean} active */
  #setActive(active) {
    this.active = active;
    // Not `disabled`: a focused button must keep the focus.
    generateButton.setAttribute("aria-disabled", String(active));
    for (const button of again) button.setAttribute("aria-disabled", String(active));
    stopButton.setAttribute("aria-disabled", String(!active));
  }
}
