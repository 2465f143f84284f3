// Package streamable reads and writes MCP's Streamable HTTP transport.
//
// A [Reader] turns the response of a server, one JSON message or a stream of events, into
// messages. A [Writer] sends messages to a client in either form.
package streamable
