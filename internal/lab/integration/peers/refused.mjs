// Connects with an official client SDK, as a client that can log in with OAuth, to the MCP
// endpoint given as the first argument, with the SDK given as the second, v1 or v2, and with the
// token given as the third. Prints why it could not connect.
const [endpoint, sdk, token] = process.argv.slice(2);
const stored = {};
const provider = {
  redirectUrl: "http://127.0.0.1:1/callback",
  clientMetadata: { client_name: "peer", redirect_uris: ["http://127.0.0.1:1/callback"] },
  clientInformation: () => stored.client,
  saveClientInformation: (client) => (stored.client = client),
  tokens: () => ({ access_token: token, token_type: "Bearer" }),
  saveTokens: () => {},
  redirectToAuthorization: (url) => console.log(`would open ${url}`),
  saveCodeVerifier: (verifier) => (stored.verifier = verifier),
  codeVerifier: () => stored.verifier,
};

const from = (path) => (sdk === "v1" ? import(`@modelcontextprotocol/sdk/client/${path}.js`) : import("@modelcontextprotocol/client"));
const { Client } = await from("index");
const { StreamableHTTPClientTransport } = await from("streamableHttp");
const client = new Client({ name: "peer", version: "1.0.0" });
try {
  await client.connect(new StreamableHTTPClientTransport(new URL(endpoint), { authProvider: provider }));
  console.log("connected");
} catch (error) {
  console.log(`${error.name}: ${error.message}`);
}
process.exit(0);
