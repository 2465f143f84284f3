// Package mcptest provides servers for tests, in the manner of net/http/httptest. Only tests and
// internal/lab import it.
//
// [Stub] is an upstream controlled by the client: the request says how the upstream behaves (a huge
// result, a slow one, a body cut off by a TCP reset), and the client can read back what the
// upstream received.
//
// [Remote] and [RunChild] are one MCP server of both eras, with two transports: Remote
// over Streamable HTTP, RunChild over stdio, as a child process. Both are strict about
// the protocol, and violate it only as their tools and flags say.
//
// [Script] is a scripted server: it checks nothing, and a test writes its responses, byte by byte
// if needed.
//
// [Chat] is a fake model API that records requests and answers "ok".
//
// [Reranker] is a fake reranker that records requests. The path selects a valid or invalid
// response.
//
// The package reads and writes JSON-RPC only with encoding/json. If it used the project's own
// parsers, it would share their bugs, and tests would not notice them.
package mcptest
