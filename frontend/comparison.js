// @ts-check
/** Two jobs side by side: a table of differences, and their output below it. */

import * as api from "./api.js";
import { ArtifactsView } from "./artifacts-view.js";
import { byId, el } from "./dom.js";
import { bytes, plain, rateWords, seconds } from "./format.js";
import { promptOf } from "./job-words.js";

/** @typedef {import("./types.js").Job} Job */

const section = byId("comparison", HTMLElement), table = byId("comparison-rows", HTMLElement), sides = byId("comparison-sides", HTMLElement);

/** @param {Job} job @returns {Record<string, string>} */
function facts(job) {
  const { receipt, request } = job;
  const options = Object.fromEntries(Object.entries(request.options ?? {}).filter(([, value]) => value != null && value !== "any"));
  return {
    State: job.status, Prompt: promptOf(job) ?? "none", Model: plain(job.model), "Device requested": plain(request.device ?? "auto"),
    "Device used": plain(receipt?.used), Engine: plain(receipt?.engine), Options: plain(options),
    Rate: receipt?.rate ? rateWords(receipt.rate) : plain(null), "First token after": seconds(receipt?.times.first_token_s),
    Running: seconds(receipt?.times.run_s), "Loading the model": seconds(receipt?.times.load_s),
    "Peak memory": bytes(receipt?.memory.peak_bytes), Counts: plain(receipt?.counts), Seed: plain(receipt?.seed),
  };
}

/** @param {string[]} ids two jobs */
export async function compare(ids) {
  const jobs = (await Promise.all(ids.map((id) => api.job(id)))).sort((a, b) => (a.id < b.id ? -1 : 1));
  const [first, second] = jobs.map(facts);
  table.replaceChildren(...Object.keys(first).map((name) => {
    const differs = first[name] !== second[name];
    return el("tr", { role: "row", "data-differs": differs ? "true" : null }, el("th", { scope: "row", role: "rowheader" }, name),
      el("td", { role: "cell", dir: "auto" }, first[name]), el("td", { role: "cell", dir: "auto" }, second[name]),
      el("td", { role: "cell" }, differs ? "differs" : "same"));
  }));
  sides.replaceChildren(...jobs.map(side));
  section.hidden = false;
  section.focus();
}

/** @param {Job} job @param {number} place */
function side(job, place) {
  const name = place ? "Second" : "First", text = el("div", { class: "output untrusted", tabindex: "0", role: "region", "aria-label": `Text of the ${name.toLowerCase()} job` });
  text.textContent = job.output.text ?? "";
  const files = el("div", { class: "artifacts" }), view = new ArtifactsView(files);
  for (const artifact of job.output.artifacts ?? []) view.add(artifact);
  return el("div", { class: "side" }, el("h3", {}, `${name}: ${plain(job.receipt?.used)}`), job.output.text ? text : el("p", { class: "quiet" }, "No text."), files);
}
