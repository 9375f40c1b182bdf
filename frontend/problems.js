// @ts-check
/** Refusals and failures: the sentences that the service sent, or those that the page has itself. */

/** @typedef {import("./types.js").Problem} Problem */

/** A refusal or failure, with the sentences that the service sent. */
export class ApiError extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.detail);
    this.problem = problem;
  }
}

/** @param {unknown} error @returns {Problem} */
export function asProblem(error) {
  if (error instanceof ApiError) return error.problem;
  return { type: "about:blank", title: "The page made a mistake", status: 0, code: "page_error", detail: String(error),
    remedy: "Reload the page." };
}

/** @returns {Problem} */
export function unreachable() {
  return { type: "about:blank", title: "The server cannot be reached", status: 0, code: "unreachable",
    detail: `Nothing answers at ${location.origin}.`,
    remedy: "Start it again (./launch_wsl.sh, or launch.ps1 on Windows). This page goes on by itself when it is back." };
}
