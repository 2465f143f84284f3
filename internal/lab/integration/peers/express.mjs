// An MCP server of the official SDK behind Express, at the port given as the first
// argument. It has the tools echo and delete_file, and tells at /seen what Express has
// read from each message.
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { createMcpExpressApp } from "@modelcontextprotocol/sdk/server/express.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { CallToolRequestSchema, ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const seen = [];
const app = createMcpExpressApp();
app.get("/seen", (req, res) => res.json(seen));
app.post("/mcp", async (req, res) => {
  seen.push({ method: req.body.method, name: req.body.params?.name, headers: req.headers });
  const server = new Server({ name: "express", version: "1.0.0" }, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: ["echo", "delete_file"].map((name) => ({ name, inputSchema: { type: "object" } })),
  }));
  server.setRequestHandler(CallToolRequestSchema, ({ params }) => ({ content: [{ type: "text", text: `ran ${params.name}` }] }));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  await server.connect(transport);
  await transport.handleRequest(req, res, req.body);
});
app.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening on port"));
