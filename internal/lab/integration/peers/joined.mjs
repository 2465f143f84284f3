// Connects with an official client SDK to the MCP endpoint given as the first
// argument, in the era given as the second, does what standard input says, a list of
// {"method":…,"params":…}, and prints what it has seen as JSON: the protocol version,
// what is listed, and for each request its result, or its error, and the progress
// that was reported before.
//
// The eras are those of the SDK of the stateless era: legacy, auto and modern; v1 is
// the SDK before that. A method "follow" calls a tool and then reads all resources
// that its result links to or has in it; its result is their contents. A method
// "watch" subscribes to a resource and calls a tool until it hears that it has
// changed; its result is what it has heard.
//
// It can be asked for roots, for a sample and, by a form, for a name, and answers
// with what the third argument says, which tells one client from another. A fourth
// argument, mute, has a client that cannot be asked.
import { text } from "node:stream/consumers";

const [endpoint, era, self = "peer", mute] = process.argv.slice(2);
const requests = JSON.parse(await text(process.stdin));
const url = new URL(endpoint);
const capabilities = mute ? {} : { roots: { listChanged: true }, sampling: {}, elicitation: { form: {} } };
const answers = {
  "roots/list": () => ({ roots: [{ uri: `file:///${self}`, name: self }] }),
  "sampling/createMessage": ({ params }) => ({
    model: self,
    role: "assistant",
    content: { type: "text", text: `${self} was asked: ${params.messages[0].content.text}` },
  }),
  "elicitation/create": () => ({ action: "accept", content: { name: self } }),
};

// connect returns a client, and the version that it has agreed on.
async function connect() {
  if (era === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const types = await import("@modelcontextprotocol/sdk/types.js");
    const client = new Client({ name: `peer ${self}`, version: "1.0.0" }, { capabilities });
    if (!mute) {
      client.setRequestHandler(types.ListRootsRequestSchema, answers["roots/list"]);
      client.setRequestHandler(types.CreateMessageRequestSchema, answers["sampling/createMessage"]);
      client.setRequestHandler(types.ElicitRequestSchema, answers["elicitation/create"]);
    }
    const transport = new StreamableHTTPClientTransport(url);
    await client.connect(transport);
    const hear = (heard) => client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, heard);
    return { client, hear, version: transport.protocolVersion };
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const mode = era === "modern" ? { pin: "2026-07-28" } : era;
  const client = new Client({ name: `peer ${self}`, version: "1.0.0" }, { capabilities, versionNegotiation: { mode } });
  if (!mute) {
    for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
  }
  await client.connect(new StreamableHTTPClientTransport(url));
  const hear = (heard) => client.setNotificationHandler("notifications/resources/updated", heard);
  return { client, hear, version: client.getNegotiatedProtocolVersion() };
}

const { client, hear, version } = await connect();
const names = (list, key) => list.map((item) => item[key]);
const seen = {
  version,
  tools: names((await client.listTools()).tools, "name"),
  prompts: names((await client.listPrompts()).prompts, "name"),
  resources: names((await client.listResources()).resources, "uri"),
  templates: names((await client.listResourceTemplates()).resourceTemplates, "uriTemplate"),
  requests: [],
};

// call makes a tool call and notes the progress, with how far it goes.
async function call(params, progress) {
  const options = { onprogress: ({ progress: step, total }) => progress.push({ step, total }) };
  return era === "v1" ? client.callTool(params, undefined, options) : client.callTool(params, options);
}

const methods = {
  "tools/call": call,
  "prompts/get": (params) => client.getPrompt(params),
  "resources/read": (params) => client.readResource(params),
  "completion/complete": (params) => client.complete(params),
  async follow(params, progress) {
    const { content } = await call(params, progress);
    const contents = [];
    for (const part of content) {
      const uri = part.uri ?? part.resource?.uri;
      if (uri) contents.push(...(await client.readResource({ uri })).contents);
    }
    return { contents };
  },
  async watch({ uri, touch }) {
    const heard = [];
    hear(({ params }) => heard.push(params.uri));
    const stop =
      version === "2026-07-28"
        ? await client.listen({ resourceSubscriptions: [uri] }).then((subscription) => () => subscription.close())
        : await client.subscribeResource({ uri }).then(() => () => client.unsubscribeResource({ uri }));
    for (let i = 0; heard.length === 0 && i < 60; i++) {
      await call(touch, []);
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    await stop();
    return { heard: [...new Set(heard)] };
  },
};
for (const { method, params } of requests) {
  const progress = [];
  const outcome = { progress };
  try {
    outcome.result = await methods[method](params, progress);
  } catch (error) {
    outcome.error = { code: error.code, message: error.message };
  }
  seen.requests.push(outcome);
}
await client.close();
process.stdout.write(JSON.stringify(seen) + "\n", () => process.exit(0)); // a pipe takes so much at once
