// @ts-check
/** Keyboard shortcuts: Ctrl or ⌘ with Enter sends from anywhere in the form, Esc stops. */

import { byId } from "./dom.js";

/** @param {HTMLFormElement} form @param {() => void} stop */
export function listenToKeys(form, stop) {
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing && !(event.target instanceof HTMLSelectElement)) stop();
  });
  if (/Mac|iP(hone|ad)/.test(navigator.userAgent)) byId("send-key", HTMLElement).textContent = "⌘ Enter";
}
