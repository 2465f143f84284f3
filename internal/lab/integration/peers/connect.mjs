// Connects with an official client SDK of an era, v1 or modern, to an MCP endpoint. The client
// has the capability elicitation, with these modes, and answers questions by a function.
export async function connect({ endpoint, era, token, elicitation, answer }) {
  const info = { name: "peer", version: "1.0.0" };
  const capabilities = { elicitation };
  const options = { requestInit: { headers: { Authorization: `Bearer ${token}` } } };
  if (era === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    const client = new Client(info, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, answer);
    await client.connect(new StreamableHTTPClientTransport(new URL(endpoint), options));
    return client;
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const client = new Client(info, { capabilities, versionNegotiation: { mode: { pin: "2026-07-28" } } });
  client.setRequestHandler("elicitation/create", answer);
  await client.connect(new StreamableHTTPClientTransport(new URL(endpoint), options));
  return client;
}
