// @ts-check
/** Numbers in words: a missing value is "unknown". */

const UNKNOWN = "unknown";

/** @param {number|null|undefined} value */
export function seconds(value) {
  if (value == null) return UNKNOWN;
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

/** @param {number|null|undefined} eta_s @returns {string} an estimate without fractions; empty if unknown */
export function timeLeft(eta_s) {
  if (eta_s == null) return "";
  const whole = Math.ceil(eta_s);
  return `, about ${whole < 100 ? `${whole} s` : `${Math.ceil(whole / 60)} min`} left`;
}

/** @param {string} text */
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** @param {number|null|undefined} value */
export function bytes(value) {
  if (value == null) return UNKNOWN;
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let step = 0;
  while (value >= 1000 && step < units.length - 1) { value /= 1000; step += 1; }
  return `${step && value < 99.5 ? value.toFixed(1) : Math.round(value)} ${units[step]}`;
}

/** @param {number|null|undefined} value 0 to 1 */
export function percent(value) {
  if (value == null) return UNKNOWN;
  const shown = value * 100;
  // Do not round 99.96 to 100.
  return `${shown === Math.round(shown) ? shown : Math.floor(shown * 10) / 10} %`;
}

/** @param {{value: number, unit: string}|null} rate */
export function rateWords(rate) {
  return rate ? `${rate.value >= 10 ? Math.round(rate.value) : rate.value.toFixed(1)} ${rate.unit}` : "";
}

/** @param {string|null|undefined} iso */
export function moment(iso) {
  if (!iso) return UNKNOWN;
  const date = new Date(iso);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

/** @param {number} count @param {string} noun */
export function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {unknown} value @returns {string} for the rows of a table */
export function plain(value) {
  if (value == null || value === "") return UNKNOWN;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") {
    const parts = Object.entries(value).map(([key, inner]) => `${key} ${plain(inner)}`);
    return parts.length ? parts.join(", ") : "none";
  }
  return String(value);
}

/** Return the best fit of a model in words; empty if unknown. @param {import("./types.js").Fit[]|undefined} fits */
export function fitWords(fits) {
  const words = { yes: "fits", partly: "fits partly", no: "does not fit" };
  const best = /** @type {(keyof typeof words)[]} */ (["yes", "partly", "no"]).flatMap((kind) => (fits ?? []).filter((fit) => fit.fits === kind)).at(0);
  return best?.fits ? { words: `${words[best.fits]} ${best.device}`, reason: best.reason } : null;
}

/** @param {number} value an error or a tolerance, rounded to two digits */
export const small = (value) => Number(value.toPrecision(2));

/** @param {string} text to end with a full stop */
export function sentence(text) {
  const trimmed = text.trim();
  return /[.!?]$/.test(trimmed) || !trimmed ? trimmed : `${trimmed}.`;
}
