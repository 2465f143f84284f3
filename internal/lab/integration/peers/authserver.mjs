// An authorization server, oidc-provider, and an MCP server of the official SDK that asks
// for its tokens, at two ports of 127.0.0.1, for each line of standard input. It prints
// their addresses as JSON when they serve: {"issuer":…,"mcp":…}. All end with the input.
//
// The line has the settings as JSON:
//
//   accessTokenSeconds  how long an access token is good, 3600 by default
//   tokenMilliseconds   how long the token endpoint takes, 0 by default
//   refreshTokens       false: none are issued
//   registration        false: no dynamic registration
//   tokenMethods        how clients authenticate at the token endpoint, in all ways by default
//   clients             metadata of clients that are registered already
//   audience            another resource that tokens can be for: they are JWTs, and can be
//                       exchanged for tokens of the MCP server (RFC 8693)
//   rejectAll           true: the MCP server answers 401 to every token
//
// A refresh token is good once. A second use revokes all that was granted with it.
//
// The MCP server has a tool for everybody, whoami, one for a single account, greet_{account},
// and write_note, which needs the scope notes:write. All else needs notes:read. Its sessions
// belong to accounts. At /stats it says what it and the authorization server have seen.
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";
import express from "express";
import { exportJWK, generateKeyPair, jwtVerify } from "jose";
import { errors, Provider } from "oidc-provider";
import { InvalidTokenError } from "@modelcontextprotocol/sdk/server/auth/errors.js";
import { requireBearerAuth } from "@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js";
import { getOAuthProtectedResourceMetadataUrl, mcpAuthMetadataRouter } from "@modelcontextprotocol/sdk/server/auth/router.js";
import { createMcpExpressApp } from "@modelcontextprotocol/sdk/server/express.js";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import {
  CallToolRequestSchema,
  GetPromptRequestSchema,
  ListPromptsRequestSchema,
  ListToolsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const SCOPES = ["notes:read", "notes:write"];
const { publicKey, privateKey } = await generateKeyPair("RS256", { extractable: true });
const jwks = { keys: [{ ...(await exportJWK(privateKey)), alg: "RS256", use: "sig", kid: "key" }] };

const count = (object, name) => (object[name] = (object[name] ?? 0) + 1);

// listen serves an app at a free port. Idle connections stay open for longer than Caddy
// keeps them: Node.js closes them even if a request has come that it has not read.
async function listen(app) {
  const server = app.listen(0, "127.0.0.1");
  server.keepAliveTimeout = 300_000;
  await new Promise((resolve, reject) => server.once("listening", resolve).once("error", reject));
  return `http://127.0.0.1:${server.address().port}`;
}

// page returns a page with a form.
const page = (title, form) => `<!doctype html><title>${title}</title><h1>${title}</h1>
<form method="post">${form}<button type="submit">${title}</button></form>`;

// serve serves both and returns their addresses.
async function serve(changes) {
  const settings = {
    accessTokenSeconds: 3600,
    tokenMilliseconds: 0,
    refreshTokens: true,
    registration: true,
    clients: [],
    ...changes,
  };
  const stats = {
    registrations: 0, // by dynamic registration
    logins: 0, // of people
    grants: {}, // tokens issued, by grant type
    refusedGrants: [], // why tokens were refused
    reused: 0, // refresh tokens that came a second time
    tokens: [], // every token that was issued
    revoked: 0, // grants that were
    requests: 0, // at the MCP server
    unauthorized: 0, // of these, answered with 401
    forbidden: 0, // answered with 403
    calls: {}, // tool calls, by account
    foreignSessions: 0, // requests in the session of another account
  };

  const login = express();
  const mcp = createMcpExpressApp();
  const issuer = await listen(login);
  const resource = new URL("/mcp", await listen(mcp));

  // The authorization server.

  const provider = new Provider(issuer, {
    clients: settings.clients,
    jwks,
    cookies: { keys: [randomUUID()] },
    scopes: settings.refreshTokens ? ["openid", "offline_access"] : ["openid"],
    ...(settings.tokenMethods && { clientAuthMethods: settings.tokenMethods }),
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: (ctx, client, code) =>
      settings.refreshTokens && client.grantTypeAllowed("refresh_token") && code.scopes.has("offline_access"),
    findAccount: (ctx, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
    interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
    ttl: { AccessToken: settings.accessTokenSeconds, ClientCredentials: settings.accessTokenSeconds },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      registration: { enabled: settings.registration },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo(ctx, indicator) {
          if (indicator === resource.href) {
            return { scope: SCOPES.join(" "), accessTokenTTL: settings.accessTokenSeconds };
          }
          if (indicator === settings.audience) {
            return { scope: "gateway", accessTokenFormat: "jwt", jwt: { sign: { alg: "RS256" } } };
          }
          throw new errors.InvalidTarget();
        },
      },
    },
  });

  provider.use(async (ctx, next) => {
    if (ctx.path === "/token") await setTimeout(settings.tokenMilliseconds);
    await next();
  });

  // Token exchange is left to those who use oidc-provider.
  async function exchange(ctx) {
    const { params, client } = ctx.oidc;
    if (params.resource !== resource.href) throw new errors.InvalidTarget();
    const { payload } = await jwtVerify(params.subject_token, publicKey, { issuer, audience: settings.audience }).catch(() => {
      throw new errors.InvalidGrant("subject_token is not valid");
    });
    const token = new provider.AccessToken({
      accountId: payload.sub,
      client,
      grantId: randomUUID(),
      gty: EXCHANGE,
      scope: params.scope ?? SCOPES[0],
    });
    token.resourceServer = new provider.ResourceServer(resource.href, {
      scope: SCOPES.join(" "),
      accessTokenTTL: settings.accessTokenSeconds,
    });
    ctx.body = {
      access_token: await token.save(),
      issued_token_type: "urn:ietf:params:oauth:token-type:access_token",
      token_type: "Bearer",
      expires_in: token.expiration,
      scope: token.scope,
    };
  }
  if (settings.audience) {
    provider.registerGrantType(EXCHANGE, exchange, [
      "audience",
      "resource",
      "scope",
      "requested_token_type",
      "subject_token",
      "subject_token_type",
    ]);
  }

  const refreshed = new Set(); // refresh tokens that were used
  function noteRefresh(ctx) {
    const token = ctx.oidc.params?.refresh_token;
    if (!token) return;
    if (refreshed.has(token)) stats.reused++;
    refreshed.add(token);
  }
  provider.on("registration_create.success", () => stats.registrations++);
  provider.on("grant.success", (ctx) => {
    noteRefresh(ctx);
    count(stats.grants, ctx.oidc.params.grant_type);
    stats.tokens.push(...[ctx.body.access_token, ctx.body.refresh_token].filter(Boolean));
  });
  provider.on("grant.error", (ctx, err) => {
    noteRefresh(ctx);
    stats.refusedGrants.push(`${err.error}: ${err.error_detail ?? err.error_description}`);
  });
  provider.on("grant.revoked", () => stats.revoked++);
  provider.on("server_error", (ctx, err) => console.error(err));

  // Two pages, one to log in and one to consent, each with a form.
  login.get("/interaction/:uid", async (req, res) => {
    const { prompt } = await provider.interactionDetails(req, res);
    res.send(prompt.name === "login" ? page("Sign in", '<input name="login" autofocus>') : page("Allow", ""));
  });
  login.post("/interaction/:uid", express.urlencoded(), async (req, res) => {
    const { prompt, params, session, grantId } = await provider.interactionDetails(req, res);
    if (prompt.name === "login") {
      stats.logins++;
      return provider.interactionFinished(req, res, { login: { accountId: req.body.login } });
    }
    const grant = grantId
      ? await provider.Grant.find(grantId)
      : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
    grant.addOIDCScope((prompt.details.missingOIDCScope ?? []).join(" "));
    for (const [indicator, scopes] of Object.entries(prompt.details.missingResourceScopes ?? {})) {
      grant.addResourceScope(indicator, scopes.join(" "));
    }
    const consent = { grantId: await grant.save() };
    return provider.interactionFinished(req, res, { consent }, { mergeWithLastSubmission: true });
  });
  login.use(provider.callback());

  // The MCP server.

  const verifier = {
    async verifyAccessToken(value) {
      const token = (await provider.AccessToken.find(value)) ?? (await provider.ClientCredentials.find(value));
      if (!token || settings.rejectAll) throw new InvalidTokenError("Invalid token");
      return {
        token: value,
        clientId: token.clientId,
        scopes: [...token.scopes],
        expiresAt: token.exp,
        resource: new URL(token.aud),
        extra: { account: token.accountId ?? token.clientId },
      };
    },
  };
  const protect = (requiredScopes) =>
    requireBearerAuth({
      verifier,
      requiredScopes,
      resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(resource),
      expectedResource: resource,
    });
  const reading = protect(SCOPES.slice(0, 1));
  const writing = protect(SCOPES);

  // serverOf is what an account finds here.
  function serverOf(account) {
    const server = new Server({ name: "notes", version: "1.0.0" }, { capabilities: { tools: {}, prompts: {} } });
    server.setRequestHandler(ListToolsRequestSchema, () => ({
      tools: ["whoami", "write_note", `greet_${account}`].map((name) => ({ name, inputSchema: { type: "object" } })),
    }));
    server.setRequestHandler(CallToolRequestSchema, ({ params }) => {
      count(stats.calls, account);
      return { content: [{ type: "text", text: `${params.name} of ${account}` }] };
    });
    server.setRequestHandler(ListPromptsRequestSchema, () => ({ prompts: [{ name: "hello" }] }));
    server.setRequestHandler(GetPromptRequestSchema, () => ({
      messages: [{ role: "user", content: { type: "text", text: `hello ${account}` } }],
    }));
    return server;
  }

  const sessions = new Map(); // transports and accounts by session id
  async function sessionOf(req, account) {
    const id = req.headers["mcp-session-id"];
    if (id) return sessions.get(id);
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, { transport, account }),
      onsessionclosed: (id) => sessions.delete(id),
    });
    await serverOf(account).connect(transport);
    return { transport, account };
  }

  mcp.get("/stats", (req, res) => res.json(stats));
  mcp.use(
    mcpAuthMetadataRouter({
      oauthMetadata: await (await fetch(`${issuer}/.well-known/oauth-authorization-server`)).json(),
      resourceServerUrl: resource,
      scopesSupported: SCOPES.slice(0, 1),
      resourceName: "notes",
    }),
  );
  mcp.all(
    resource.pathname,
    (req, res, next) => {
      stats.requests++;
      res.on("finish", () => {
        if (res.statusCode === 401) stats.unauthorized++;
        if (res.statusCode === 403) stats.forbidden++;
      });
      (req.body?.params?.name === "write_note" ? writing : reading)(req, res, next);
    },
    async (req, res) => {
      const { account } = req.auth.extra;
      const session = await sessionOf(req, account);
      if (session && session.account !== account) stats.foreignSessions++;
      if (session?.account !== account) return res.status(404).json({ error: "no such session" });
      await session.transport.handleRequest(req, res, req.body);
    },
  );

  return { issuer, mcp: resource.href };
}

console.info = console.error; // the notices of oidc-provider
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await serve(JSON.parse(line))));
}
process.exit(0);
