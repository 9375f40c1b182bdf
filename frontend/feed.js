// @ts-check
/** Events of all jobs and devices: one tab follows the server and passes them to the others, because connections are limited. */

import * as api from "./api.js";

/** @typedef {{event: string, data: any}} News */

const NAME = "touchstone.feed";

/**
 * @param {(news: News) => void} onNews
 * @param {() => void} onGap events may be missing: reload everything
 */
export function listen(onNews, onGap) {
  const others = "BroadcastChannel" in globalThis ? new BroadcastChannel(NAME) : null;
  others?.addEventListener("message", ({ data }) => (data.event === "gap" ? onGap() : onNews(data)));
  const lead = () => new Promise(() => { // as long as this tab exists
    let before = false;
    api.followAll((event, data) => {
      others?.postMessage({ event, data });
      onNews({ event, data });
    }, () => {
      if (before) { others?.postMessage({ event: "gap" }); onGap(); }
      before = true;
    });
  });
  if (navigator.locks && others) navigator.locks.request(NAME, lead);
  else lead();
}
