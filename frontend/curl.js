// @ts-check
/** The request of the form as a command: page and API teach each other. */

/** @param {string} text for a POSIX shell */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** @param {Record<string, unknown>} request */
export function curlCommand(request) {
  return `curl ${location.origin}/api/generate \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(request))}`;
}
