// @ts-check
/** Errors: as sent by the service, or of the page itself. */

/** @typedef {import("./types.js").Problem} Problem */

/** An error with the problem document of the service. */
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
  return { type: "about:blank", title: "Internal error of the page", status: 0, code: "page_error", detail: String(error),
    remedy: "Reload the page." };
}

/** @returns {Problem} */
export function unreachable() {
  return { type: "about:blank", title: "The server cannot be reached", status: 0, code: "unreachable",
    detail: `Nothing answers at ${location.origin}.`,
    remedy: "Start it again (./launch_wsl.sh, or launch.ps1 on Windows). This page reconnects automatically." };
}
