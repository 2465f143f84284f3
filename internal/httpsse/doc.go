// Package httpsse makes servers of the HTTP+SSE transport, that of the protocol's first
// revision (2024-11-05), servers of Streamable HTTP.
//
// Such a server has one event stream for each session. Its first event, endpoint, names where
// messages are posted. Answers and all other messages come on the stream. [Pool.Open] opens
// one and returns the id of a session, in which [Pool.Serve] takes requests of Streamable
// HTTP: a POST of a request is answered by what comes on the stream for it, a GET is a
// stream of what belongs to no request, a DELETE ends the session. So does the end of the
// server's stream, and a time without requests: the session is not known from then on, and
// a client that needs one opens another.
//
// # One stream, many calls
//
// Requests get ids of their own towards the server, and so do their progress tokens, because
// one stream answers what two HTTP requests with equal ids have asked. Notifications and
// questions of the server do not say which call they belong to. They go to the only call
// that is in flight. With several, they go to a GET stream or, if there is none, to the
// latest call. All of them are of the same client.
package httpsse
