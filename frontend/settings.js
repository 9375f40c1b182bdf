// @ts-check
/** What the person chose: kept in the browser, preset by the address (`/?task=&model=&device=&fallback=`). */

/** @typedef {import("./types.js").Settings} Settings */

const KEY = "touchstone.settings";
const JOB_KEY = "touchstone.job";
const PRESETS = /** @type {const} */ (["task", "model", "device", "fallback"]);

/** @param {Storage} storage @param {string} key */
function read(storage, key) {
  try { return storage.getItem(key); } catch { return null; } // storage may be switched off: the page works without
}

/** @param {Storage} storage @param {string} key @param {string} value */
function write(storage, key, value) {
  try { storage.setItem(key, value); } catch { /* switched off or full */ }
}

/** What was chosen for the task before is kept, and taken up again with it. @param {Settings} found @param {string} task */
function enter(found, task) {
  const { model, prompt, options } = found;
  found.kept = { ...found.kept, [found.task]: { model, prompt, options } };
  Object.assign(found, { model: "", prompt: "", options: {} }, found.kept[task], { task });
}

/** @returns {Settings} */
function load() {
  /** @type {Settings} */
  const found = { task: "text", model: "", device: "auto", fallback: "cpu", prompt: "", options: {}, kept: {} };
  try { Object.assign(found, JSON.parse(read(localStorage, KEY) ?? "{}")); } catch { /* not ours, or damaged */ }
  const address = new URL(location.href);
  const task = address.searchParams.get("task")?.trim();
  if (task && task !== found.task) enter(found, task);
  for (const name of PRESETS) {
    const value = address.searchParams.get(name)?.trim();
    if (value) found[name] = value;
    address.searchParams.delete(name);
  }
  // Taken over once: left in the address, it would undo at each reload what is chosen later.
  if (address.href !== location.href) history.replaceState(null, "", address);
  if (!["cpu", "any", "never"].includes(found.fallback)) found.fallback = "cpu";
  write(localStorage, KEY, JSON.stringify(found));
  return found;
}

export const settings = load();

/** @param {Partial<Settings>} changes */
export function save(changes) {
  Object.assign(settings, changes);
  write(localStorage, KEY, JSON.stringify(settings));
}

/** @param {string} task */
export function enterTask(task) {
  enter(settings, task);
  save({});
}

/** The job that this tab shows, so that a reload finds it again. */
export const shownJob = {
  get: () => read(sessionStorage, JOB_KEY),
  /** @param {string} id */
  set: (id) => write(sessionStorage, JOB_KEY, id),
  clear: () => write(sessionStorage, JOB_KEY, ""),
};
