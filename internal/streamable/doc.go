// Package streamable reads and writes MCP's Streamable HTTP transport.
//
// A [Reader] turns the response of a server, one JSON message or a stream of events, into
// messages. A [Session] gives the requests of a client their headers, and a [Position]
// resumes a stream. [Inspect] checks a request to a server, and a [Writer] sends messages to
// a client in either form.
package streamable
