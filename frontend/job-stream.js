// @ts-check
/**
 * Follow one job. A browser allows six connections per host, shared by all tabs: a few tabs stream, and the others poll
 * the job each second until a connection is free.
 */

import * as api from "./api.js";

/** @typedef {import("./types.js").Job} Job @typedef {import("./types.js").Problem} Problem */
/** @typedef {{event: (name: string, data: any) => void, link: (state: "open"|"reconnecting") => void, lost: (problem: Problem) => void}} Heard */

const LINES = 3, ASK_EACH_MS = 1000;

/** @param {string} id @param {Heard} heard @returns {() => void} stops following; the job keeps running */
export function followJob(id, heard) {
  let stopped = false, stop = () => {};
  const enough = new Promise((resolve) => { stop = () => { stopped = true; resolve(undefined); }; });
  const begin = async () => {
    const held = await line(enough, () => {
      if (stopped) return;
      const leave = api.follow(id, (name, data) => { if (!stopped) heard.event(name, data); if (api.TERMINAL.includes(name) || name === "settled") stop(); },
        heard.link, (problem) => { stop(); heard.lost(problem); });
      enough.then(leave);
    });
    if (!held && !stopped) ask(id, heard, () => stopped);
  };
  begin();
  return stop;
}

/**
 * Take a free connection, if there is one, until `over`. Without locks (a page not served from this machine) every
 * tab streams.
 * @param {Promise<unknown>} over @param {() => void} use
 */
async function line(over, use) {
  if (!navigator.locks) { use(); return true; }
  for (let number = 1; number <= LINES; number += 1) {
    const got = await new Promise((resolve) => {
      navigator.locks.request(`touchstone.line.${number}`, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        if (!lock) return undefined;
        use();
        return over;
      });
    });
    if (got) return true;
  }
  return false;
}

/** @param {string} id @param {Heard} heard @param {() => boolean} isOver */
async function ask(id, heard, isOver) {
  let shown = "", status = "";
  while (!isOver()) {
    try {
      const job = await api.job(id);
      if (isOver()) return;
      if (api.isOver(job)) { heard.event("settled", job); return; }
      heard.link("open");
      const text = job.output.text ?? "";
      if (!text.startsWith(shown)) { heard.event("restart", {}); shown = ""; }
      if (text.length > shown.length) heard.event("token", { text: text.slice(shown.length), count: 0 });
      shown = text;
      if (job.status !== status) heard.event(job.status, { device: job.receipt?.resolved ?? null });
      status = job.status;
      if (job.progress) heard.event("progress", job.progress);
    } catch (error) {
      const problem = api.asProblem(error);
      if (problem.status === 404) { heard.lost(problem); return; }
      heard.link("reconnecting");
    }
    await new Promise((resolve) => setTimeout(resolve, ASK_EACH_MS));
  }
}
