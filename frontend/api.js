// @ts-check
/** All requests of the page: JSON calls, and EventSource to follow a job. */

import { ApiError, asProblem, unreachable } from "./problems.js";

export { asProblem };

/** @typedef {import("./types.js").Job} Job @typedef {import("./types.js").Problem} Problem */

export const TERMINAL = ["done", "error", "cancelled", "interrupted"];
const EVENTS = ["queued", "loading", "running", "progress", "token", "fallback", "artifact", ...TERMINAL];
const LONGEST_WAIT_S = 10, SENDING_S = 3600;

/**
 * @param {string} method
 * @param {string} path
 * @param {{body?: unknown, file?: File, headers?: Record<string, string>, limit_s?: number}} [settings]
 * @returns {Promise<any>}
 */
async function call(method, path, { body, file, headers = {}, limit_s = 30 } = {}) {
  const init = { method, headers: { Accept: "application/json", ...headers }, signal: AbortSignal.timeout(limit_s * 1000) };
  if (body !== undefined) Object.assign(init, { body: JSON.stringify(body) });
  if (file) Object.assign(init, { body: file });
  else if (method !== "GET") Object.assign(init.headers, { "Content-Type": "application/json" });
  /** @type {any} */
  let answer = null;
  let response;
  try {
    response = await fetch(`api/${path}`, init);
    const text = await response.text();
    try { answer = JSON.parse(text); } catch { /* not JSON: reported below if it is a failure */ }
  } catch { throw new ApiError(unreachable()); }
  if (response.ok) return answer;
  const fallback = { type: "about:blank", title: response.statusText || "Failed", status: response.status, code: "unknown",
    detail: `The server answered ${response.status} without a reason.`, remedy: "Check the server's log." };
  throw new ApiError({ ...fallback, ...(answer ?? {}) });
}

/** @param {string} url */
async function file(url) {
  let response;
  try { response = await fetch(url, { signal: AbortSignal.timeout(30_000) }); } catch { throw new ApiError(unreachable()); }
  if (!response.ok) throw new ApiError({ ...unreachable(), detail: `The server answered ${response.status}.`, code: "unknown" });
  return response;
}

/** Return the text of a file. @param {string} url */
export const text = async (url) => (await file(url)).text();
/** Return the bytes of a file. @param {string} url */
export const whole = async (url) => (await file(url)).arrayBuffer();

/** @param {string} token */
export const openSession = (token) => call("POST", "session", { body: { token } });
export const health = () => call("GET", "health", { limit_s: 5 });
/** @param {number} wait_s */
export const devices = (wait_s = 0) => call("GET", `devices${wait_s ? `?wait_s=${wait_s}` : ""}`, { limit_s: wait_s + 15 });
/** @param {string} [device] one, or all */
export const refreshDevices = (device) => call("POST", "devices/refresh", { body: device ? { device } : {} });
/** @param {string} device @param {string} [model] lifts the quarantine of one model, or of all */
export const release = (device, model) => call("POST", `devices/${encodeURIComponent(device)}/release`, { body: model ? { model } : {} });
/** @param {string} model @returns {Promise<Job>} */
export const unload = (model) => call("POST", `models/${encodeURIComponent(model)}/unload`, { body: {} });
/** @param {string} model */
export const removeModel = (model) => call("DELETE", `models/${encodeURIComponent(model)}`);
export const models = () => call("GET", "models");
/** @param {string} words @returns {Promise<{results: import("./types.js").Found[]}>} */
export const searchModels = (words) => call("GET", `models/search?q=${encodeURIComponent(words)}`, { limit_s: 60 });
/** @param {string} source */
export const addModel = (source) => call("POST", "models", { body: { source } });
/** @param {{models: string[], devices?: string[]}} asked @returns {Promise<Job>} */
export const measure = (asked) => call("POST", "bench", { body: asked });
export const runtimes = () => call("GET", "runtimes");
/** @param {string} task install, update, verify, rollback @param {string} name @returns {Promise<any>} a Job; for a rollback the Runtime */
export const changeRuntime = (task, name) => call("POST", `runtimes/${encodeURIComponent(name)}/${task}`, { body: {} });
/** @param {string} name */
export const removeRuntime = (name) => call("DELETE", `runtimes/${encodeURIComponent(name)}`, { limit_s: 120 });
/** @param {Record<string, unknown>} request @returns {Promise<Job>} */
export const generate = (request) => call("POST", "generate", { body: request, headers: { Prefer: "respond-async" } });
/** @param {File} file @returns {Promise<{id: string}>} */
export const sendFile = (file) => call("PUT", `files/${encodeURIComponent(file.name)}`, { file, limit_s: SENDING_S });
/** @param {string} query */
export const jobs = (query) => call("GET", `jobs?${query}`);
/** @param {string} id @returns {Promise<Job>} */
export const job = (id) => call("GET", `jobs/${encodeURIComponent(id)}`);
/** @param {string} id @returns {Promise<Job>} */
export const cancel = (id) => call("POST", `jobs/${encodeURIComponent(id)}/cancel`, { body: {} });
/** @param {string} id @param {string} [device] optional; another device than in the first run @returns {Promise<Job>} */
export const rerun = (id, device) => call("POST", `jobs/${encodeURIComponent(id)}/rerun`, { body: device ? { device } : {} });
/** @param {string} id */
export const forget = (id) => call("DELETE", `jobs/${encodeURIComponent(id)}`);

/** @param {Job} job */
export const isOver = (job) => TERMINAL.includes(job.status);

/**
 * Follow the events of all jobs and devices. The browser reconnects after the last received event.
 * @param {(name: string, data: any) => void} onEvent @param {() => void} onOpen on each connection, reconnections included
 */
export function followAll(onEvent, onOpen) {
  let wait_s = 1;
  const open = () => {
    const source = new EventSource("api/events");
    source.addEventListener("open", () => { wait_s = 1; onOpen(); });
    source.addEventListener("error", (event) => {
      if (event instanceof MessageEvent || source.readyState !== EventSource.CLOSED) return;
      setTimeout(open, wait_s * 1000); // refused, for example without a token: the browser does not retry
      wait_s = Math.min(wait_s * 2, LONGEST_WAIT_S);
    });
    for (const name of [...EVENTS, "device", "runtime"]) {
      source.addEventListener(name, (event) => { if (event instanceof MessageEvent) onEvent(name, JSON.parse(event.data)); });
    }
  };
  open();
}

/**
 * Follow a job from its first event to its last. A lost connection resumes after the last received event;
 * duplicate events are dropped by their number.
 * @param {string} id
 * @param {(name: string, data: any) => void} onEvent the job's events, or `settled` with a Job that ended while disconnected
 * @param {(state: "open"|"reconnecting") => void} onLink
 * @param {(problem: Problem) => void} onLost the server no longer knows the job
 * @returns {() => void} stops following; the job keeps running
 */
export function follow(id, onEvent, onLink, onLost) {
  let last = 0, wait_s = 0.5, stopped = false, timer = 0;
  /** @type {EventSource} */
  let source;
  const stop = () => { stopped = true; clearTimeout(timer); source.close(); };

  const lookAgain = async () => {
    try {
      const now = await job(id);
      if (stopped) return;
      if (isOver(now)) { stop(); onEvent("settled", now); } else open();
    } catch (error) {
      if (stopped) return;
      if (asProblem(error).status === 404) { stop(); onLost(asProblem(error)); } else later();
    }
  };
  const later = () => {
    timer = window.setTimeout(lookAgain, wait_s * 1000);
    wait_s = Math.min(wait_s * 2, LONGEST_WAIT_S);
  };
  /** @param {Event} event */
  const receive = (event) => {
    if (!(event instanceof MessageEvent)) { // connection lost; an event named "error" has data
      onLink("reconnecting");
      if (source.readyState === EventSource.CLOSED) later(); // the browser does not retry (also after 204): ask why
      return;
    }
    const number = Number(event.lastEventId);
    if (stopped || number <= last) return;
    last = number;
    if (TERMINAL.includes(event.type)) stop();
    onEvent(event.type, JSON.parse(event.data));
  };
  function open() {
    source = new EventSource(`api/jobs/${encodeURIComponent(id)}/events${last ? `?after=${last}` : ""}`);
    source.addEventListener("open", () => { wait_s = 0.5; onLink("open"); });
    for (const name of EVENTS) source.addEventListener(name, receive);
  }
  open();
  return stop;
}
