// Connects with an official client SDK to the MCP endpoint given as the first argument,
// in the era given as the second, v1 or modern, with the token given as the third, calls
// the tools given on standard input, a list of {"name":…,"arguments":…}, and prints a line
// of JSON for everything it sees: {"tools":[…]}, then {"result":…} or {"error":…} for each
// call.
//
// It can be asked to open an address. It says yes, and prints {"elicitation":…}: somebody
// else opens it.
import { text } from "node:stream/consumers";

import { connect } from "./connect.mjs";

const [endpoint, era, token] = process.argv.slice(2);
const calls = JSON.parse(await text(process.stdin));
const print = (line) => console.log(JSON.stringify(line));
const accept = ({ params }) => {
  print({ elicitation: params });
  return { action: "accept" };
};

const client = await connect({ endpoint, era, token, elicitation: { url: {} }, answer: accept });
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
