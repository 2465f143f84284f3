// Package mcptest has the servers that tests put in front of the product, in the
// manner of net/http/httptest. Only tests and internal/lab import it.
//
// [Stub] is an obedient upstream: the client says in the request
// how the upstream shall behave (a huge result, a slow one, a body
// cut off by a TCP reset) and reads back what the upstream saw.
//
// [Remote] and [RunChild] are one MCP server of both eras, with two transports: Remote
// over Streamable HTTP, RunChild over stdio, as a child process. Both are strict about
// the protocol, and misbehave only as their tools and flags say.
//
// [Script] is the rude server: it checks nothing, and a test writes its answers, byte by
// byte if need be.
//
// [Chat] stands in for a model API, recording requests and answering "ok".
//
// [Reranker] stands in for a reranker, recording requests and answering well or
// badly, by path.
//
// The package reads and writes JSON-RPC with encoding/json alone. A fixture that
// shared the project's own parsers would share their faults, and then no test
// could see them.
package mcptest
