// Connects with the official client SDK to the MCP endpoint given as the first
// argument, calls the reference server's echo tool with the text given as the
// second, and prints the tool result as JSON.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [endpoint, message] = process.argv.slice(2);
const client = new Client({ name: "peer", version: "1.0.0" });
await client.connect(new StreamableHTTPClientTransport(new URL(endpoint)));
const { tools } = await client.listTools();
if (!tools.some((tool) => tool.name === "echo")) throw new Error("no echo among the tools");
console.log(JSON.stringify(await client.callTool({ name: "echo", arguments: { message } })));
await client.close();
