// @ts-check
/** Elements without innerHTML: whatever text arrives, it becomes text and nothing else. */

/**
 * The element of the page with this id; a page that lacks it is a mistake, named at once.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`The page has no ${type.name} with the id "${id}".`);
  return found;
}

/**
 * @param {string} tag
 * @param {Record<string, string|boolean|null|((event: Event) => void)>} attributes functions become listeners
 * @param {...(Node|string|null|false|undefined)} children
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/**
 * Foreign text inside one of our sentences: isolated, so that its direction marks end where it ends.
 * @param {string} text
 */
export function foreign(text) {
  return el("bdi", {}, text);
}

/**
 * A sentence of the server's, whose commands stand between backticks.
 * @param {string} text
 */
export function prose(text) {
  return el("bdi", {}, ...text.split(/`([^`]+)`/).map((part, place) => place % 2 ? el("code", {}, part) : part));
}

/**
 * @param {string} text
 * @param {HTMLElement} button says for a moment how it went
 */
export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser did not allow it: select the text and copy it by hand";
  }
  setTimeout(() => { button.textContent = label; }, 2500);
}
