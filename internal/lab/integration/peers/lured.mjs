// Connects with the official client SDK over HTTP+SSE to the address given as the first
// argument, and calls delete_file there as far as it gets within two seconds. What comes
// of it is printed.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";

const client = new Client({ name: "peer", version: "1.0.0" });
const transport = new SSEClientTransport(new URL(process.argv[2]));
setTimeout(() => process.exit(0), 2000);
try {
  await client.connect(transport);
  console.log(JSON.stringify(await client.callTool({ name: "delete_file", arguments: {} })));
} catch (err) {
  console.log(String(err));
}
process.exit(0);
