// An MCP server of the official SDK with an event store, at the port given as the first
// argument. Its tool work reports progress in as many steps as its argument says, and asks
// the client for a name in the middle. It closes the stream of its call after each step, so
// that the client has to resume that. The server tells at /seen what it was asked.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { createMcpExpressApp } from "@modelcontextprotocol/sdk/server/express.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { InMemoryEventStore } from "@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js";
import { CallToolRequestSchema, ElicitResultSchema, ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const work = async ({ params }, extra) => {
  let name = "";
  for (let i = 1; i <= params.arguments.steps; i++) {
    await extra.sendNotification({
      method: "notifications/progress",
      params: { progressToken: params._meta.progressToken, progress: i },
    });
    if (i === Math.ceil(params.arguments.steps / 2)) {
      const requestedSchema = { type: "object", properties: { name: { type: "string" } } };
      const asked = { method: "elicitation/create", params: { message: "name?", requestedSchema } };
      const answer = extra.sendRequest(asked, ElicitResultSchema);
      extra.closeSSEStream();
      name = (await answer).content.name;
    } else {
      extra.closeSSEStream();
    }
    await sleep(20);
  }
  return { content: [{ type: "text", text: `done by ${name}` }] };
};

const seen = [];
const sessions = new Map();
// The store replays the events of a stream in the order of their ids. Its own ids of one millisecond
// have no order, so a replay may leave out events.
const eventStore = new InMemoryEventStore();
let events = 0;
eventStore.generateEventId = (stream) => `${stream}_${String(++events).padStart(9, "0")}`;
const begin = async () => {
  const server = new Server({ name: "polling", version: "1.0.0" }, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: [{ name: "work", inputSchema: { type: "object" } }] }));
  server.setRequestHandler(CallToolRequestSchema, work);
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore,
    retryInterval: 50,
    onsessioninitialized: (id) => sessions.set(id, transport),
  });
  await server.connect(transport);
  return transport;
};

const app = createMcpExpressApp();
app.get("/seen", (req, res) => res.json(seen));
app.all("/mcp", async (req, res) => {
  seen.push({ method: req.body?.method ?? req.method, last: req.headers["last-event-id"] ?? "" });
  const id = req.headers["mcp-session-id"];
  const transport = id ? sessions.get(id) : await begin();
  if (transport) {
    await transport.handleRequest(req, res, req.body);
  } else {
    res.status(404).end();
  }
});
app.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening on port"));
