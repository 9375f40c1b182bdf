// @ts-check
/** The selection: stored in the browser and in the address (`/?task=&model=&device=&fallback=`). */

/** @typedef {import("./types.js").Settings} Settings */

const KEY = "touchstone.settings";
const JOB_KEY = "touchstone.job";
const PRESETS = /** @type {const} */ (["task", "model", "device", "fallback"]);
const USUAL = { task: "text", model: "", device: "auto", fallback: "cpu" };

/** @param {Storage} storage @param {string} key */
function read(storage, key) {
  try { return storage.getItem(key); } catch { return null; } // storage may be disabled; the page works without
}

/** @param {Storage} storage @param {string} key @param {string} value */
function write(storage, key, value) {
  try { storage.setItem(key, value); } catch { /* switched off or full */ }
}

/** Switch the task; the selection of each task is kept. @param {Settings} found @param {string} task */
function enter(found, task) {
  const { model, prompt, options } = found;
  found.kept = { ...found.kept, [found.task]: { model, prompt, options } };
  Object.assign(found, { model: "", prompt: "", options: {} }, found.kept[task], { task });
}

/** @returns {Settings} */
function load() {
  /** @type {Settings} */
  const found = { ...USUAL, prompt: "", options: {}, kept: {} };
  try { Object.assign(found, JSON.parse(read(localStorage, KEY) ?? "{}")); } catch { /* not ours, or damaged */ }
  const address = new URL(location.href);
  const task = address.searchParams.get("task")?.trim();
  if (task && task !== found.task) enter(found, task);
  for (const name of PRESETS) {
    const value = address.searchParams.get(name)?.trim();
    if (value) found[name] = value;
  }
  if (!["cpu", "any", "never"].includes(found.fallback)) found.fallback = "cpu";
  return found;
}

/** Write the selection into the address, for sharing, bookmarks and reloads; defaults are omitted. */
function tellAddress() {
  const address = new URL(location.href);
  for (const name of PRESETS) {
    if (settings[name] && settings[name] !== USUAL[name]) address.searchParams.set(name, settings[name]);
    else address.searchParams.delete(name);
  }
  if (address.href !== location.href) history.replaceState(history.state, "", address);
}

export const settings = load();
save({});

/** @param {Partial<Settings>} changes */
export function save(changes) {
  Object.assign(settings, changes);
  write(localStorage, KEY, JSON.stringify(settings));
  tellAddress();
}

/** Return an address with the complete selection, independent of the browser's storage. */
export function wholeAddress() {
  const address = new URL(location.pathname, location.href);
  for (const name of PRESETS) if (settings[name]) address.searchParams.set(name, settings[name]);
  return address.href;
}

/** @param {string} task */
export function enterTask(task) {
  enter(settings, task);
  save({});
}

/** The job of this tab, for reloads. */
export const shownJob = {
  get: () => read(sessionStorage, JOB_KEY),
  /** @param {string} id */
  set: (id) => write(sessionStorage, JOB_KEY, id),
  clear: () => write(sessionStorage, JOB_KEY, ""),
};
