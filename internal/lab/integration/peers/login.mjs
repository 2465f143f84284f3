// Connects with an official client SDK to the MCP endpoint given as the first argument,
// in the era given as the second, v1 or modern, with the token given as the third, calls
// the tools given on standard input, a list of {"name":…,"arguments":…}, and prints a line
// of JSON for everything it sees: {"tools":[…]}, then {"result":…} or {"error":…} for each
// call.
//
// It can be asked to open an address. It says yes, and prints {"elicitation":…}: somebody
// else opens it.
import { text } from "node:stream/consumers";

const [endpoint, era, token] = process.argv.slice(2);
const calls = JSON.parse(await text(process.stdin));
const print = (line) => console.log(JSON.stringify(line));
const info = { name: "peer", version: "1.0.0" };
const capabilities = { elicitation: { url: {} } };
const options = { requestInit: { headers: { Authorization: `Bearer ${token}` } } };
const accept = ({ params }) => {
  print({ elicitation: params });
  return { action: "accept" };
};

async function connect() {
  if (era === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    const client = new Client(info, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, accept);
    await client.connect(new StreamableHTTPClientTransport(new URL(endpoint), options));
    return client;
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const client = new Client(info, { capabilities, versionNegotiation: { mode: { pin: "2026-07-28" } } });
  client.setRequestHandler("elicitation/create", accept);
  await client.connect(new StreamableHTTPClientTransport(new URL(endpoint), options));
  return client;
}

const client = await connect();
print({ tools: (await client.listTools()).tools.map((tool) => tool.name) });
for (const call of calls) {
  try {
    print({ result: await client.callTool(call) });
  } catch ({ code, message, data }) {
    print({ error: { code, message, data } });
  }
}
await client.close();
process.exit(0);
