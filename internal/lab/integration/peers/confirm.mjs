// Connects with an official client SDK to the MCP endpoint given as the first argument, in
// the era given as the second, v1 or modern, with the token given as the third, calls the
// tool given on standard input, {"name":…,"arguments":…}, and prints a line of JSON for
// everything it sees: {"tools":[…]}, then {"elicitation":…} if it is asked to confirm the
// call, and {"result":…} or {"error":…}.
//
// It answers the question with the action given as the fourth argument. If that is leave,
// it ends instead, and if it is abort, it cancels the call.
import { text } from "node:stream/consumers";

import { connect } from "./connect.mjs";

const [endpoint, era, token, action] = process.argv.slice(2);
const call = JSON.parse(await text(process.stdin));
const print = (line) => console.log(JSON.stringify(line));
const aborted = new AbortController();
const answer = ({ params }) => {
  print({ elicitation: params });
  if (action === "leave") process.exit(0);
  if (action === "abort") {
    aborted.abort();
    return new Promise(() => {});
  }
  return action === "accept" ? { action, content: {} } : { action };
};

const client = await connect({ endpoint, era, token, elicitation: {}, answer });
print({ tools: (await client.listTools()).tools.map((tool) => tool.name) });
const request = { signal: aborted.signal };
try {
  print({ result: await (era === "v1" ? client.callTool(call, undefined, request) : client.callTool(call, request)) });
} catch ({ code, message, data }) {
  print({ error: { code, message, data } });
}
await client.close();
process.exit(0);
