// @ts-check
/** A server that was started with a token asks for it once; a cookie then stands for it. */

import * as api from "./api.js";
import { byId } from "./dom.js";
import { hide, showProblem } from "./notice.js";

const form = byId("token-form", HTMLFormElement), input = byId("token", HTMLInputElement), wrong = byId("token-wrong", HTMLElement);

/** @param {() => void} onOpen called when the server let the page in */
export function askForToken(onOpen) {
  if (!form.hidden) return;
  form.hidden = false;
  input.focus();
  form.onsubmit = async (event) => {
    event.preventDefault();
    try { await api.openSession(input.value); } catch (error) {
      showProblem(wrong, api.asProblem(error));
      return;
    }
    input.value = "";
    hide(wrong);
    form.hidden = true;
    onOpen();
  };
}

/**
 * A container prints an address that ends in #token=…: the page opens with it and takes it out of the address.
 * @returns {Promise<boolean>} whether there was one
 */
export async function takeTokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return false;
  history.replaceState(null, "", location.pathname + location.search);
  try { await api.openSession(token); } catch { /* the form asks for the right one */ }
  return true;
}
