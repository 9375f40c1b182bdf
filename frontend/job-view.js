// @ts-check
/** The view of one job: state, growing text, warning, receipt. Makes no requests. */

import { ArtifactsView } from "./artifacts-view.js";
import { byId, copy, el } from "./dom.js";
import { plural } from "./format.js";
import { endWords, fallbackWords, progressWords, promptOf, queueWords, stateWords } from "./job-words.js";
import { hasSeed } from "./request.js";
import { showSounds, showWords } from "./lyrics-view.js";
import { hide, showBanner, showProblem } from "./notice.js";
import { warning } from "./receipt-words.js";
import { showReceipt } from "./receipt-view.js";
import { Transcript } from "./transcript.js";
import { soundOf } from "./tunes.js";

/** @typedef {import("./types.js").Job} Job */

const part = (/** @type {string} */ id) => byId(id, HTMLElement);
const alert = part("alert"), banner = part("banner"), figures = part("figures"), output = part("output"), status = part("status");
const actions = part("result-actions"), asked = part("asked"), askedBox = part("asked-box"), receipt = part("receipt");
const progress = byId("progress", HTMLProgressElement);

export class JobView {
  /** @type {import("./types.js").Device[]} */
  devices = [];
  #count = 0;
  #words = "";
  #text = new Transcript(output, () => { if (this.#count) figures.textContent = plural(this.#count, "token"); });
  #artifacts = new ArtifactsView(part("artifacts"));

  constructor() {
    part("copy-text").addEventListener("click", () => copy(output.textContent ?? "", part("copy-text")));
  }

  /** @param {string} words */
  say(words) {
    this.#words = words;
    status.textContent = words;
  }

  /** @param {"open"|"reconnecting"} link */
  link(link) {
    status.textContent = link === "open" ? this.#words : "Connection lost. Reconnecting; the job keeps running…";
  }

  /** Remove everything of the previous job. */
  clear() {
    this.#restart();
    for (const element of [alert, banner, receipt]) hide(element);
    for (const element of [askedBox, output, progress, part("words")]) element.hidden = true;
  }

  /** Show the devices for a rerun. */
  showRerun() {
    const select = byId("rerun-on", HTMLSelectElement), kept = select.value;
    const ready = this.devices.filter((device) => device.state === "ready").map(({ id }) => id);
    select.replaceChildren(el("option", { value: "" }, "the same device"), ...ready.map((id) => el("option", { value: id }, id)));
    select.value = ready.includes(kept) ? kept : "";
  }

  /** @param {string} words the reason why no job is shown */
  empty(words) {
    this.clear();
    actions.hidden = true;
    part("starts-box").hidden = false;
    this.say(words);
  }

  #restart() {
    this.#count = 0;
    this.#text.clear();
    this.#artifacts.clear();
    showSounds(null);
    figures.textContent = "";
  }

  /** @param {Job} job */
  begin(job) {
    this.clear();
    this.#artifacts.together = job.task === "stems";
    asked.textContent = promptOf(job);
    askedBox.hidden = promptOf(job) === null;
    showWords(job);
    output.hidden = actions.hidden = false;
    part("starts-box").hidden = true;
    output.setAttribute("aria-busy", "true");
    this.say("Waiting in the queue…");
  }

  /** @param {string} name @param {any} data data of an event that is not terminal */
  event(name, data) {
    const waits = name === "progress" && data.phase === "queue"; // its total is the position in the queue
    if (name !== "artifact") progress.hidden = name !== "progress" || waits || !data.total;
    switch (name) {
      case "token":
        this.#count += data.count;
        this.#text.append(data.text);
        break;
      case "progress":
        if (waits) {
          this.say(queueWords(data.total, data.eta_s));
          break;
        }
        progress.max = data.total ?? 1;
        progress.value = data.done;
        figures.textContent = progressWords(data);
        break;
      case "artifact":
        this.#artifacts.add(data);
        break;
      case "restart":
        this.#restart();
        break;
      case "fallback":
        this.#restart();
        showBanner(banner, fallbackWords(data, this.devices));
        break;
      default:
        this.say(stateWords(name, data, this.devices) || this.#words);
    }
  }

  /** @param {Job} job @param {boolean} seen whether its text was shown while it grew */
  end(job, seen) {
    if (!seen) {
      this.#text.clear();
      this.#text.append(job.output.text ?? "");
    }
    this.#text.whenShown(() => {
      output.setAttribute("aria-busy", "false");
      output.hidden = !output.textContent;
      figures.textContent = "";
    });
    for (const artifact of job.output.artifacts ?? []) this.#artifacts.add(artifact);
    for (const [id, fits] of Object.entries({ reseed: hasSeed, vary: soundOf, continue: soundOf })) part(id).hidden = !fits(job);
    showSounds(job);
    progress.hidden = true;
    this.say(endWords(job));
    showBanner(banner, warning(job, this.devices));
    showReceipt(receipt, job, this.devices);
    if (job.error) showProblem(alert, job.error, { focus: seen }); // an old failure must not take the focus
  }

  /** @param {import("./types.js").Problem} problem @param {boolean} refused there is no job to rerun */
  fail(problem, refused = false) {
    if (refused) actions.hidden = true;
    this.say(problem.title);
    showProblem(alert, problem);
  }
}
