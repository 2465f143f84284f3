// Sends the request on standard input with OpenAI's official client to the base
// URL given as the first argument, in the mode given as the second, compressed
// if the third is gzip, and prints the text and the usage of the answer as JSON.
import { text } from "node:stream/consumers";
import OpenAI from "openai";
import { gzipFetch } from "./gzip.mjs";

const [baseURL, mode, encoding] = process.argv.slice(2);
const body = JSON.parse(await text(process.stdin));
const client = new OpenAI({
  baseURL,
  apiKey: "sk-peer",
  maxRetries: 0,
  fetch: encoding === "gzip" ? gzipFetch : undefined,
});

const modes = {
  async chat() {
    const { choices, usage } = await client.chat.completions.create(body);
    return { text: choices[0].message.content, usage };
  },
  async "chat-stream"() {
    const stream_options = { ...body.stream_options, include_usage: true };
    const answer = { text: "" };
    for await (const chunk of await client.chat.completions.create({ ...body, stream: true, stream_options })) {
      answer.text += chunk.choices[0]?.delta.content ?? "";
      if (chunk.usage) answer.usage = chunk.usage;
    }
    return answer;
  },
  async responses() {
    const { output_text, usage } = await client.responses.create(body);
    return { text: output_text, usage };
  },
  async "responses-stream"() {
    const answer = { text: "" };
    for await (const event of await client.responses.create({ ...body, stream: true })) {
      if (event.type === "response.output_text.delta") answer.text += event.delta;
      if (event.type === "response.completed") answer.usage = event.response.usage;
    }
    return answer;
  },
};
console.log(JSON.stringify(await modes[mode]()));
