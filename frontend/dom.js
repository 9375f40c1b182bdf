// @ts-check
/** Elements without innerHTML: all text stays text. */

/**
 * Return the element with this id. Throws an Error if the page lacks it.
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
 * Redraw a part of the page and keep the focus on its control; controls are identified by `data-key`.
 * @param {HTMLElement} root @param {() => void} draw
 */
export function keepFocus(root, draw) {
  const { activeElement } = document;
  const key = activeElement instanceof HTMLElement && root.contains(activeElement) ? activeElement.dataset.key : undefined;
  draw();
  if (key) /** @type {HTMLElement|null} */ (root.querySelector(`[data-key="${CSS.escape(key)}"]`))?.focus();
}

/**
 * Return foreign text for use inside a sentence, isolated so that its direction marks end with it.
 * @param {string} text
 */
export function foreign(text) {
  return el("bdi", {}, text);
}

/**
 * Return a sentence of the server, with commands between backticks as code.
 * @param {string} text
 */
export function prose(text) {
  return el("bdi", {}, ...text.split(/`([^`]+)`/).map((part, place) => place % 2 ? el("code", {}, part) : part));
}

/**
 * Return a sentence of the server with a copy button for each command in it. An option alone is not a command.
 * @param {string} text
 * @returns {Node[]}
 */
export function remedy(text) {
  const commands = [...new Set([...text.matchAll(/`([^`]+)`/g)].map(([, command]) => command))]
    .filter((command) => !command.startsWith("-"));
  return [prose(text), ...commands.map((command) => {
    const button = el("button", { type: "button", class: "small copy" }, "Copy", el("span", { class: "unseen" }, ` ${command}`));
    button.addEventListener("click", () => copy(command, button));
    return button;
  })];
}

/**
 * Make a button for an irreversible action ask for a second press.
 * @param {HTMLElement} button @param {() => void} act
 */
export function twice(button, act) {
  const label = [...button.childNodes]; // "Delete", and for screen readers the name
  let asked = false;
  const calm = () => { if (asked) { asked = false; button.replaceChildren(...label); } };
  button.addEventListener("blur", calm);
  button.addEventListener("click", () => {
    if (asked) { calm(); act(); return; }
    asked = true;
    button.replaceChildren("Press again to confirm");
  });
  return button;
}

/**
 * @param {string} text
 * @param {HTMLElement} button shows the result for a moment
 */
export async function copy(text, button) {
  const label = [...button.childNodes];
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser refused: select the text and copy it manually";
  }
  setTimeout(() => button.replaceChildren(...label), 2500);
}
