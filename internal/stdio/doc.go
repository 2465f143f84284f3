// Package stdio makes a child process that speaks MCP on its standard streams an
// HTTP server of the Streamable HTTP transport: a [Pool] is an http.RoundTripper.
//
// A message that is POSTed is written to the child's stdin. Its answer comes back
// as JSON, or as an event stream once something else precedes it: progress, a log
// message, a question of the server. A GET opens the stream of a session, a DELETE
// ends the session.
//
// # Who shares a child
//
// Servers of the legacy era learn in initialize what their client can do, and some offer
// accordingly less or more. So clients share a child if they declare the same capabilities
// ([Shared]), and each sees of the server what it would see of one of its own. The same is
// the same JSON: the order of members and white space do not matter. Roots do not count,
// because a shared child does not get them. Nor do clientInfo and the protocol version: the
// child hears of the gateway and its latest version, and a client that wants an older one
// is told that.
//
// Clients choose what they declare, so the groups of a server are limited, in all and by
// owner. When there is no room, a group that was not used for a minute ends. If there is
// none, the client shares the child of the group with the most capabilities that declares
// nothing the client does not: it sees less, but what it sees works. There is always room for the
// group of those that declare nothing. A group without sessions and requests ends after the
// time to live of sessions, unless its child is the last of the server that runs.
//
// Requests of the modern era carry their capabilities, so all clients of that era share one
// child. If the server knows only the legacy era, each of their requests is answered by the
// child of its capabilities. What declares nothing, such as a single request without a
// session or a health check, is answered by a child that runs; if none does, by that of
// clients without capabilities.
//
// [OneForAll] is for servers of which there must be one process: all clients share one
// child, which is told that they can do everything.
//
// # One child, many clients
//
// All clients count their requests from 0. Towards the child every request has an
// id of ours, and so have its progress token and what cancels it; what comes back
// gets the client's own literal again. Questions of the server and log messages
// carry no sign of whose call they belong to. They go to the one client that had
// calls in flight when the child wrote them; with several clients they are never
// guessed at, because a wrong guess shows one client's data to another. A call that was
// given up counts until the child has answered a ping that follows the cancellation. A child
// that asks in that call even later asks a client that it does not know, if one alone has
// calls in flight then.
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
