// @ts-check
/** The state of the server, its problems, and reconnection. */

import * as api from "./api.js";
import { byId, el } from "./dom.js";
import { showProblem } from "./notice.js";

/** @typedef {import("./types.js").Health} Health */

const line = byId("health", HTMLElement), gone = byId("gone", HTMLElement), problems = byId("problems", HTMLElement);
const list = byId("problems-list", HTMLElement);
const EACH_S = 10, AWAY_S = 3;

/** @param {Health} health */
function show({ status, version, problems: found = [] }) {
  const words = { ok: "ok", starting: "starting", degraded: "something needs attention" }[status] ?? status;
  line.textContent = `Version ${version}: ${words}`;
  line.dataset.state = status;
  problems.hidden = !found.length;
  list.replaceChildren(...found.map((problem) => el("li", { dir: "auto" },
    el("strong", {}, problem.subject), `: ${problem.detail} ${problem.remedy}`)));
}

/** @param {() => void} onBack called when the server answers again, maybe as a new process */
export function watchHealth(onBack) {
  let away = false, timer = 0, asking = false;
  const ask = async () => {
    if (asking) return;
    asking = true;
    clearTimeout(timer);
    try {
      show(await api.health());
      if (away) { gone.hidden = true; away = false; onBack(); }
    } catch (error) {
      if (!away) {
        showProblem(gone, api.asProblem(error), { focus: false });
        gone.append(el("button", { type: "button", click: ask }, "Try now"));
        line.textContent = "Cannot reach the server";
        line.dataset.state = "away";
        problems.hidden = true;
      }
      away = true;
    }
    asking = false;
    timer = window.setTimeout(ask, (away ? AWAY_S : EACH_S) * 1000);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  ask();
}
