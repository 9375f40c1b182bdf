// @ts-check
/** The receipt of a result: a summary, and the full table on demand. */

import { copy, el } from "./dom.js";
import { asText, rows } from "./receipt-rows.js";
import { account, headline, verdict } from "./receipt-words.js";

/**
 * @typedef {import("./types.js").Job} Job
 * @typedef {import("./types.js").Device} Device
 */

const MARKS = { proved: "Proved", elsewhere: "Ran elsewhere", unknown: "Not proved", none: "Not finished" };

/** @param {HTMLElement} root @param {Job} job @param {Device[]} devices */
export function showReceipt(root, job, devices) {
  root.hidden = !job.receipt;
  root.replaceChildren();
  if (!job.receipt) return;
  const mark = verdict(job);
  root.dataset.verdict = mark;
  const stone = el("div", { class: "streak", "aria-hidden": "true" });
  const share = job.receipt.placement?.on_device;
  stone.style.setProperty("--share", String(mark === "none" || mark === "unknown" ? 0 : share ?? 0));
  root.append(
    el("header", {}, stone, el("div", {},
      el("p", { class: "mark" }, `Receipt · ${MARKS[mark]}`),
      el("h3", { id: "receipt-title", dir: "auto" }, headline(job, devices)))),
    el("p", { class: "account", dir: "auto" }, account(job)),
    el("details", {},
      el("summary", {}, "Full receipt"),
      el("table", { class: "rows", role: "table" }, el("tbody", { role: "rowgroup" }, ...rows(job).map(([name, value]) =>
        el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, name), el("td", { role: "cell", dir: "auto" }, value)))))),
    copyButton(job, devices),
  );
}

/** @param {Job} job @param {Device[]} devices */
function copyButton(job, devices) {
  const button = el("button", { type: "button", id: "copy-receipt" }, "Copy the receipt");
  button.addEventListener("click", () => copy(asText(job, devices), button));
  return button;
}
