// Connects with the official client SDK to the MCP endpoint given as the first
// argument, over HTTP+SSE if the second is sse, calls the tools given on standard
// input, a list of {"name":…,"arguments":…}, and prints what it has seen as JSON:
// the names of the tools and, for each call, its result and the progress that was
// reported before.
//
// It can be asked for roots, for a sample and, by a form, for a name, and answers
// with what the third argument says, which tells one client from another.
import { text } from "node:stream/consumers";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const [endpoint, transport, self = "peer"] = process.argv.slice(2);
const calls = JSON.parse(await text(process.stdin));

const client = new Client(
  { name: "peer", version: "1.0.0" },
  { capabilities: { roots: { listChanged: true }, sampling: {}, elicitation: { form: {} } } },
);
client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: `file:///${self}`, name: self }] }));
client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => ({
  model: self,
  role: "assistant",
  content: { type: "text", text: `${self} was asked: ${params.messages[0].content.text}` },
}));
client.setRequestHandler(ElicitRequestSchema, () => ({ action: "accept", content: { name: self } }));

const url = new URL(endpoint);
await client.connect(transport === "sse" ? new SSEClientTransport(url) : new StreamableHTTPClientTransport(url));
const { tools } = await client.listTools();
const seen = { tools: tools.map((tool) => tool.name), calls: [] };
for (const call of calls) {
  const progress = [];
  const onprogress = (report) => progress.push(report.progress);
  seen.calls.push({ result: await client.callTool(call, undefined, { onprogress }), progress });
}
console.log(JSON.stringify(seen));
await client.close();
