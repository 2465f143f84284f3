// Package httpsse translates the HTTP+SSE transport of MCP 2024-11-05 to Streamable HTTP.
//
// A server with HTTP+SSE has one event stream for each session. Its first event, endpoint,
// announces the URL to which messages are posted. Responses and all other messages come on the
// stream. [Pool.Open] opens a stream and returns the id of a session, in which [Pool.Serve] serves
// requests of Streamable HTTP: a POST of a request gets the messages on the stream that belong to
// it, a GET is a stream of messages that belong to no request, and a DELETE ends the session. The
// session also ends with the server's stream, and after a time without requests: then its id is
// unknown, and a client that needs a session opens another.
//
// # One stream, many calls
//
// Requests get new ids and progress tokens for the server, because two HTTP requests with equal ids
// share one stream. Notifications and server requests do not say to which call they belong. They go
// to the only call in progress. With several calls, they go to a GET stream or, if there is none,
// to the latest call. All of these belong to the same client.
package httpsse
