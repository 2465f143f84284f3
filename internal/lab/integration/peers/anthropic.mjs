// Sends the request on standard input with Anthropic's official client to the
// base URL given as the first argument, in the mode given as the second,
// compressed if the third is gzip, and prints the text and the usage of the
// answer as JSON.
import { text } from "node:stream/consumers";
import Anthropic from "@anthropic-ai/sdk";
import { gzipFetch } from "./gzip.mjs";

const [baseURL, mode, encoding] = process.argv.slice(2);
const body = JSON.parse(await text(process.stdin));
const client = new Anthropic({
  baseURL,
  apiKey: "sk-peer",
  maxRetries: 0,
  fetch: encoding === "gzip" ? gzipFetch : undefined,
});

const modes = {
  messages: () => client.messages.create(body),
  "messages-stream": () => client.messages.stream(body).finalMessage(),
};
const { content, usage } = await modes[mode]();
console.log(JSON.stringify({ text: content.map((block) => block.text ?? "").join(""), usage }));
