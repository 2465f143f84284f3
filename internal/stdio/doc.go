// Package stdio makes a child process that speaks MCP on its standard streams
// available as an HTTP server of the Streamable HTTP transport: a [Pool] is an
// http.RoundTripper.
//
// A POSTed message is written to the child's stdin. Its response comes back as JSON,
// or as an event stream if other messages precede it: progress, a log message, a
// server request. A GET opens the stream of a session, a DELETE ends the session.
//
// # Which clients share a child
//
// In the legacy era, initialize tells a server the capabilities of its client, and some
// servers offer more or less accordingly. So clients share a child if they declare the
// same capabilities ([Shared]): each sees the server as if it had a child of its own.
// Capabilities are compared as JSON; the order of members and white space do not matter.
// Roots do not count, because a shared child does not get them. Nor do clientInfo and the
// protocol version: the child gets those of the gateway, and a client that requests an
// older version gets that version in the result.
//
// Clients choose what they declare, so the number of groups is limited, per server and
// per owner. If the limit is reached, a group that was unused for a minute ends. If there
// is no such group, the client shares the child of the group with the most capabilities
// that declares nothing the client does not: it sees less, but what it sees works. The
// group without capabilities does not count toward the limit. A group without sessions
// and requests ends after the time to live of sessions, unless its child is the last one
// of the server that runs.
//
// Requests of the modern era carry their capabilities, so all clients of that era share
// one child. If the server supports only the legacy era, the child for the capabilities
// of the request answers it. Requests that declare nothing, such as a single request
// without a session or a health check, go to any child that runs, or else to the one of
// clients without capabilities.
//
// [SingleChild] is for servers that must have a single process: all clients share one
// child, and initialize declares every capability.
//
// # One child, many clients
//
// All clients count their requests from 0. The pool gives each request to the child a new
// id, and uses that id as its progress token and in its cancellation. Responses get the
// client's id back. Server requests and log messages do not name the call that caused
// them. They go to the client that had calls in flight when the child wrote them, if only
// one had. With several clients they are never guessed, because a wrong guess shows one
// client's data to another. An abandoned call counts until the child has answered a ping
// that follows the cancellation. If a child sends a request for an abandoned call even
// later, and exactly one other client has calls in flight then, that client gets it.
//
// One client never changes what the child does for others. Roots come from the
// configuration. Server requests between calls are refused. The child gets the most
// verbose log level that any client has set, and each client gets the messages of its own
// level. A resource is unsubscribed when its last subscriber unsubscribes. Use
// [PerSession] for servers that need more from their clients: it gives each session its
// own child.
//
// # Lifetime
//
// A child is started when it is first needed, and initialized once. When it dies, its
// calls fail at once, and it is restarted after a pause that grows while it keeps dying.
// To stop a child, the pool closes its stdin, then sends TERM, then KILL. The processes
// that the child has started get the signals as well.
package stdio
