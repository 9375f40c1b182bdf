// @ts-check
/** What happens to all jobs and devices: one tab listens to the server and tells the others, since lines are few. */

import * as api from "./api.js";

/** @typedef {{event: string, data: any}} News */

const NAME = "touchstone.feed";

/**
 * @param {(news: News) => void} onNews
 * @param {() => void} onGap something may have been missed: look at everything again
 */
export function listen(onNews, onGap) {
  const others = "BroadcastChannel" in globalThis ? new BroadcastChannel(NAME) : null;
  others?.addEventListener("message", ({ data }) => (data.event === "gap" ? onGap() : onNews(data)));
  const lead = () => new Promise(() => { // for as long as this tab lives
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
