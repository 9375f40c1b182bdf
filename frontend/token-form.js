// @ts-check
/** The token form: the server asks for its token once and then uses a cookie. */

import * as api from "./api.js";
import { byId } from "./dom.js";
import { hide, showProblem } from "./notice.js";

const form = byId("token-form", HTMLFormElement), input = byId("token", HTMLInputElement), wrong = byId("token-wrong", HTMLElement);

/** @param {() => void} onOpen called after a successful login */
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
 * Use the token of an address that ends in #token=…, as a container prints it, and remove it from the address.
 * @returns {Promise<boolean>} whether the address had a token
 */
export async function takeTokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return false;
  history.replaceState(null, "", location.pathname + location.search);
  try { await api.openSession(token); } catch { /* the form asks again */ }
  return true;
}
