// @ts-check
/** Errors, announced by screen readers and focused; and banners. */

import { el } from "./dom.js";
import { sentence } from "./format.js";

/** @typedef {import("./types.js").Problem} Problem */

/** @param {HTMLElement} root @param {Problem} problem @param {{focus?: boolean}} [how] */
export function showProblem(root, problem, { focus = true } = {}) {
  root.replaceChildren(
    el("strong", { dir: "auto" }, problem.title),
    el("p", { class: "detail", dir: "auto" }, sentence(problem.detail ?? "")),
    problem.remedy && el("p", { class: "remedy", dir: "auto" }, `What to do: ${sentence(problem.remedy)}`),
    el("p", { class: "quiet" }, `${problem.code}${problem.status ? ` · HTTP ${problem.status}` : ""}`),
  );
  root.hidden = false;
  if (focus) root.focus();
}

/** @param {HTMLElement} root @param {{title: string, words: string}|null} words */
export function showBanner(root, words) {
  root.hidden = !words;
  root.replaceChildren();
  if (words) root.append(el("strong", {}, words.title), el("p", { dir: "auto" }, words.words));
}

/** @param {HTMLElement} root */
export function hide(root) {
  root.hidden = true;
  root.replaceChildren();
}
