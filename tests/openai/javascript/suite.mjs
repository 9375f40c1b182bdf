// The official JavaScript client, end to end on the real server: `BASE_URL=… MODEL=… node --test suite.mjs`.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { BASE_URL, MODEL } = process.env;
const client = new OpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: "any", maxRetries: 0, timeout: 120_000 });
const hello = { model: MODEL, messages: [{ role: "user", content: "Say hello." }], max_tokens: 4, temperature: 0 };
const story = { ...hello, messages: [{ role: "user", content: "Write a very long story about a dog." }], max_tokens: 3000 };

const lastJob = async () => (await (await fetch(`${BASE_URL}/api/jobs?limit=1`)).json()).jobs[0];

/** The newest job once it has ended; events stream until then. */
async function endedJob() {
  const { id } = await lastJob();
  await (await fetch(`${BASE_URL}/api/jobs/${id}/events`)).text();
  return (await fetch(`${BASE_URL}/api/jobs/${id}`)).json();
}

test("models", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert(ids.includes(MODEL));
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
});

test("chat with usage, receipt and headers", async () => {
  const { data, response } = await client.chat.completions.create({ ...hello, device: "cpu", fallback: "never" }).withResponse();
  assert.equal(data.usage.completion_tokens, 4);
  assert.equal(data.choices[0].finish_reason, "length");
  assert.equal(data.receipt.used, "cpu");
  assert.equal(response.headers.get("x-device-used"), "cpu");
});

test("a stream joins to the same text", async () => {
  const whole = await client.chat.completions.create(hello);
  const stream = await client.chat.completions.create({ ...hello, stream: true, stream_options: { include_usage: true } });
  let text = "", usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 4);
});

test("the stream helper, a seed and n", async () => {
  const asked = { ...hello, temperature: 1.2, seed: 3, n: 2 };
  const whole = await client.chat.completions.create(asked);
  const helped = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(helped.choices.map((c) => c.message.content), whole.choices.map((c) => c.message.content));
});

test("a schema", async () => {
  const schema = { type: "object", properties: { people: { type: "integer", minimum: 1, maximum: 99 } }, required: ["people"], additionalProperties: false };
  const format = { type: "json_schema", json_schema: { name: "town", strict: true, schema } };
  const found = await client.chat.completions.create({ ...hello, max_tokens: 30, response_format: format });
  const { people } = JSON.parse(found.choices[0].message.content);
  assert(Number.isInteger(people) && people >= 1 && people <= 99);
});

test("a tool", async () => {
  const tool = { type: "function", function: { name: "add", parameters: { type: "object", properties: { a: { type: "integer", maximum: 9, minimum: 0 } }, required: ["a"], additionalProperties: false } } };
  const found = await client.chat.completions.create({ ...hello, model: "caller", max_tokens: 30, tools: [tool], tool_choice: "required" });
  const [call] = found.choices[0].message.tool_calls;
  assert.equal(call.function.name, "add");
  assert.equal(typeof JSON.parse(call.function.arguments).a, "number");
});

test("completions and embeddings", async () => {
  const found = await client.completions.create({ model: MODEL, prompt: "One, two,", max_tokens: 2 });
  assert(found.choices[0].text);
  const vectors = await client.embeddings.create({ model: "embedder", input: ["a", "b"] });
  assert.deepEqual(vectors.data.map((entry) => entry.embedding.length), [16, 16]);
});

test("refusals are the client's own errors", async () => {
  await assert.rejects(client.chat.completions.create({ ...hello, model: "nope" }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  await assert.rejects(client.chat.completions.create({ ...hello, reasoning_effort: "low" }), (error) => error.status === 400 && error.param === "reasoning_effort");
  await assert.rejects(client.chat.completions.create({ ...hello, stream: true, device: "cuda:9", fallback: "never" }), OpenAI.ConflictError);
});

test("an abort in mid-stream stops the work", async () => {
  const stream = await client.chat.completions.create({ ...story, stream: true });
  let seen = "";
  for await (const chunk of stream) {
    seen += chunk.choices[0].delta.content ?? "";
    if (seen.length > 20) break; // which aborts
  }
  const job = await endedJob();
  assert.equal(job.status, "cancelled");
  assert(job.output.text.startsWith(seen));
});

test("a client that waits no longer cancels its job", async () => {
  const before = (await lastJob()).id;
  await assert.rejects(client.chat.completions.create(story, { timeout: 1000 }), OpenAI.APIConnectionTimeoutError);
  const job = await endedJob();
  assert.notEqual(job.id, before);
  assert.equal(job.status, "cancelled");
});
