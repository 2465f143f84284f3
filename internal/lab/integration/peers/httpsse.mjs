// An MCP server of the official SDK over HTTP+SSE, the transport of the protocol's first
// revision, at the port given as the first argument: its streams are at /sse. It prints a
// line for all that happens: opened and closed, when a stream is, and what its tools note.
//
// Its tools are count, which counts the calls of a session, progress, ask and sample, which
// ask the client, touch, which changes the resource note://one, change, which adds a tool, hang,
// which notes hanging and waits until it is cancelled, and exit, which ends the process in
// mid-call.
import { writeSync } from "node:fs";
import express from "express";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { SSEServerTransport } from "@modelcontextprotocol/sdk/server/sse.js";
import { SubscribeRequestSchema, UnsubscribeRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const note = (line) => writeSync(1, `${line}\n`); // which is done when the process exits
const text = (value) => ({ content: [{ type: "text", text: String(value) }] });

function newServer() {
  const server = new McpServer({ name: "httpsse", version: "1.0.0" }, { capabilities: { resources: { subscribe: true } } });
  const inner = server.server;
  const tool = (name, run) => server.registerTool(name, { description: name }, run);
  let count = 0;
  let tools = 0;
  const subscribed = new Set();
  inner.setRequestHandler(SubscribeRequestSchema, ({ params }) => (subscribed.add(params.uri), {}));
  inner.setRequestHandler(UnsubscribeRequestSchema, ({ params }) => (subscribed.delete(params.uri), {}));
  server.registerResource("one", "note://one", {}, (uri) => ({ contents: [{ uri: uri.href, text: "one" }] }));
  tool("count", () => text(++count));
  tool("progress", async ({ _meta, sendNotification }) => {
    for (const progress of [1, 2, 3]) {
      await sendNotification({ method: "notifications/progress", params: { progressToken: _meta.progressToken, progress } });
    }
    return text("done");
  });
  tool("ask", async () => {
    const requestedSchema = { type: "object", properties: { name: { type: "string" } } };
    return text(JSON.stringify(await inner.elicitInput({ message: "who?", requestedSchema })));
  });
  tool("sample", async () => {
    const messages = [{ role: "user", content: { type: "text", text: "why" } }];
    return text(JSON.stringify(await inner.createMessage({ messages, maxTokens: 1 })));
  });
  tool("touch", async () => {
    if (subscribed.has("note://one")) await inner.sendResourceUpdated({ uri: "note://one" });
    return text("touched");
  });
  tool("change", () => (tool(`more${++tools}`, () => text("more")), text("changed")));
  tool("hang", ({ signal }) => {
    note("hanging");
    return new Promise((resolve) => signal.addEventListener("abort", () => (note("cancelled"), resolve(text("cancelled")))));
  });
  tool("exit", () => {
    note("exiting");
    setTimeout(() => process.exit(1), 100); // when the message has been accepted
    return new Promise(() => {});
  });
  return server;
}

const app = express();
const transports = new Map();
app.get("/sse", async (req, res) => {
  const transport = new SSEServerTransport("/message", res);
  transports.set(transport.sessionId, transport);
  res.on("close", () => {
    transports.delete(transport.sessionId);
    note("closed");
  });
  note("opened");
  await newServer().connect(transport);
});
app.post("/message", async (req, res) => {
  const transport = transports.get(req.query.sessionId);
  if (!transport) return res.status(404).send("Session not found");
  await transport.handlePostMessage(req, res);
});
app.listen(Number(process.argv[2]), "127.0.0.1", () => note("ready"));
