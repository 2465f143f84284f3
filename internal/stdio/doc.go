// Package stdio makes a child process that speaks MCP on its standard streams an
// HTTP server of the Streamable HTTP transport: a [Pool] is an http.RoundTripper.
//
// A message that is POSTed is written to the child's stdin. Its answer comes back
// as JSON, or as an event stream once something else precedes it: progress, a log
// message, a question of the server. A GET opens the stream of a session, a DELETE
// ends the session.
//
// # One child, many clients
//
// All clients count their requests from 0. Towards the child every request has an
// id of ours, and so have its progress token and what cancels it; what comes back
// gets the client's own literal again. Questions of the server and log messages
// carry no sign of whose call they belong to. They go to the one client that had
// calls in flight when the child wrote them; with several clients they are never
// guessed at, because a wrong guess shows one client's data to another.
//
// What one client says never changes what the child does for others. Roots come from
// the configuration. Questions between calls are refused. The child is told the most
// verbose log level that a client wants, and each client gets the messages of its own
// level. A resource is unsubscribed when the last client gives it up. Give each session
// a child of its own ([PerSession]) where a server needs more of its clients.
//
// # Lives
//
// A child is started when it is first needed and initialized once. When it dies its
// calls fail at once, and it is started again after a pause that grows while it
// keeps dying. It is stopped by closing its stdin, then by TERM, then by KILL, which
// its own children get as well.
package stdio
