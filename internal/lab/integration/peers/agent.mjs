// Is an agent without a model. It connects with an official client SDK to the MCP endpoint
// given as the first argument, in the era given as the second, and looks for facts in files,
// as standard input says: {"tool":…,"files":[{"path":…,"goal":…,"then":…,"want":…}]}. It prints as
// JSON how it went with each file.
//
// It calls the tool with its goal as focus and, if the answer does not have what is wanted,
// asks for the original by the goal that comes then. It does the same again without focus. Then it reads
// the original back, in parts and as a resource, and prints the hashes of what it got.
import { createHash } from "node:crypto";
import { text } from "node:stream/consumers";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [endpoint, era] = process.argv.slice(2);
const { tool, files } = JSON.parse(await text(process.stdin));
const mode = era === "modern" ? { pin: "2026-07-28" } : era;
const client = new Client({ name: "agent", version: "1.0.0" }, { versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(endpoint)));
const { tools } = await client.listTools();
const recovery = tools.find(({ name }) => name === "recover_observation");
const byGoal = recovery && "goal" in recovery.inputSchema.properties;

const textOf = ({ content }) => content.map((part) => part.text ?? "").join("\n");
const hash = (data) => createHash("sha256").update(data).digest("hex");
const recover = (args) => client.callTool({ name: "recover_observation", arguments: args });

// look calls the tool and, if need be, asks for more.
async function look({ path, then: goal, want }, focus) {
  const first = textOf(await client.callTool({ name: tool, arguments: { path, ...focus } }));
  const id = first.match(/id=(obs_[A-Za-z0-9]{10})/)?.[1];
  const seen = { id, chars: [first.length], found: first.includes(want) };
  if (!seen.found && id) {
    const words = goal.match(/[\w]{4,}/g).join("|");
    const asked = byGoal ? { goal } : { pattern: `(?i)(${words}).*(${words})`, max_matches: 200 };
    const second = textOf(await recover({ id, ...asked }));
    seen.chars.push(second.length);
    seen.found = second.includes(want);
  }
  return seen;
}

// readParts reads an original in parts of a few thousand characters.
async function readParts(id) {
  const parts = [];
  for (let start = 0; start !== undefined; ) {
    const { content, _meta } = await recover({ id, start_char: start, end_char: start + 100_000 });
    parts.push(content[0].text);
    start = _meta.end_char < _meta.total_chars ? _meta.end_char : undefined;
  }
  return parts.join("");
}

const seen = { version: client.getNegotiatedProtocolVersion(), byGoal, files: [] };
for (const file of files) {
  const outcome = { focused: await look(file, { focus: file.goal }), plain: await look(file, {}) };
  outcome.parts = hash(await readParts(outcome.focused.id));
  const { contents } = await client.readResource({ uri: `proxy://observation/${outcome.plain.id}` });
  outcome.resource = hash(contents[0].text);
  seen.files.push(outcome);
}
console.log(JSON.stringify(seen));
await client.close();
process.exit(0);
