// @ts-check
/** Follow-ups of a finished tune: the same opening with a new continuation, or a continuation of all of it. */

/** @typedef {import("./types.js").Job} Job */

const KEPT = ["form", "instrument", "backing", "tempo_bpm", "temperature", "top_p"]; // metre and key come from the phrase
const MOST_BARS = 256, MOST_OPENING_BARS = 32, MOST_CHARS = 4800, SEED_LIMIT = 2 ** 32 - 1;

/** Return the melody of an ABC file: metre, unit, key and bars, without chord names and further voices. @param {string} abc */
function melodyOf(abc) {
  const lines = abc.split("\n");
  const head = lines.filter((line) => /^[MLK]:/.test(line));
  const first = lines.findIndex((line) => /^V:/.test(line)), start = first < 0 ? lines.findIndex((line) => /^K:/.test(line)) : first;
  const length = lines.slice(start + 1).findIndex((line) => /^V:/.test(line));
  const music = lines.slice(start + 1, length < 0 ? undefined : start + 1 + length).filter((line) => !/^(%|[A-Za-z]:)/.test(line));
  const bars = music.join(" ").replace(/"[^"]*"/g, "").split(/\s*\|[\]|:]*\s*/).map((bar) => bar.trim()).filter(Boolean);
  return { head, bars };
}

/** @param {Job} job */
export const soundOf = (job) => (job.task === "music" && job.status === "done"
  ? (job.output.artifacts ?? []).find((artifact) => artifact.name.endsWith(".abc")) : undefined);

/**
 * @param {Job} job @param {string} abc @param {"vary"|"continue"} how
 * @returns {Record<string, unknown>} the request
 */
export function anotherTune(job, abc, how) {
  const { head, bars } = melodyOf(abc);
  const opening = how === "vary" ? bars.slice(0, Math.max(1, Math.floor(bars.length / 4))) : bars.slice(-MOST_OPENING_BARS);
  while (opening.length > 1 && [...head, ...opening].join(" | ").length > MOST_CHARS) {
    if (how === "vary") opening.pop(); else opening.shift();
  }
  const made = { ...job.request.options, ...job.receipt?.chosen };
  const kept = Object.fromEntries(KEPT.filter((name) => made[name] != null).map((name) => [name, made[name]]));
  const { model, device, fallback, engine } = job.request;
  return {
    task: "music", ...(model && { model }), ...(device && { device }), ...(fallback && { fallback }), ...(engine && { engine }),
    options: {
      ...kept, abc: `${head.join("\n")}\n${opening.join(" | ")} |`,
      bars: Math.min(MOST_BARS, (Number(made.bars) || bars.length) + (how === "vary" ? 0 : opening.length)),
      seed: Math.floor(Math.random() * SEED_LIMIT),
    },
  };
}
