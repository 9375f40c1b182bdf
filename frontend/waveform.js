// @ts-check
/** The waveform of a sound, above its player; a click seeks to that position. */

import * as api from "./api.js";

const WIDTH = 600, HEIGHT = 64, MOST_BYTES = 60_000_000; // larger files would need too much memory to decode
const SVG = "http://www.w3.org/2000/svg";

/** @param {string} name @param {Record<string, string>} attributes */
function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** @param {HTMLAudioElement} player @param {import("./types.js").Artifact} artifact @returns {Element} filled after decoding */
export function waveform(player, { url, bytes }) {
  const svg = shape("svg", { class: "waveform", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (bytes > MOST_BYTES) return svg;
  const heard = shape("rect", { class: "heard", x: "0", y: "0", width: "0", height: String(HEIGHT) });
  const show = () => heard.setAttribute("width", String(player.duration ? player.currentTime / player.duration * WIDTH : 0));
  for (const name of ["timeupdate", "seeked", "loadedmetadata"]) player.addEventListener(name, show);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    if (player.duration) player.currentTime = (/** @type {MouseEvent} */ (event).clientX - box.left) / box.width * player.duration;
  });
  draw(url).then((path) => svg.append(heard, shape("path", { d: path })), () => svg.remove()); // the player reports what it cannot play
  return svg;
}

/** @param {string} url @returns {Promise<string>} a path of the highest and lowest sample of each column */
async function draw(url) {
  const context = new OfflineAudioContext(1, 1, 44_100);
  const sound = await context.decodeAudioData(await api.whole(url));
  const samples = sound.getChannelData(0), step = samples.length / WIDTH;
  let most = 1e-9;
  /** @type {[number, number][]} */
  const columns = [];
  for (let column = 0; column < WIDTH; column += 1) {
    let low = 0, high = 0;
    for (let at = Math.floor(column * step); at < Math.floor((column + 1) * step); at += 1) {
      if (samples[at] < low) low = samples[at]; else if (samples[at] > high) high = samples[at];
    }
    columns.push([low, high]);
    most = Math.max(most, high, -low);
  }
  const y = (/** @type {number} */ value) => (HEIGHT / 2 * (1 - 0.95 * value / most)).toFixed(1);
  return columns.map(([low, high], column) => `M${column + 0.5} ${y(high)}V${y(low)}`).join("");
}
