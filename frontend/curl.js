// @ts-check
/** The request of the form as a curl command. */

/** @param {string} text for a POSIX shell */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** @param {Record<string, unknown>} request */
export function curlCommand(request) {
  const first = request.inputs ? `curl -T FILE ${location.origin}/api/files/FILE  # its answer has the ID\n` : "";
  return `${first}curl ${location.origin}/api/generate \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(request))}`;
}
