// Package aggregate makes one MCP server out of many.
//
// A client that talks to an [Aggregate] sees the tools, prompts, resources and
// templates of all servers behind it, under names that tell them apart. What it
// asks for by such a name is passed on to the server that has it, spliced where
// names stand and otherwise as it came; what the server says comes back in the same
// way. Only what no server could answer alone is answered here: the handshake, the
// lists, the streams.
//
// # Eras
//
// Clients and servers each speak one of two eras of the protocol, in any
// combination. Where both speak the same, messages pass. Where they do not, the
// server is spoken to in its own era, and what one era lacks is bridged: questions
// that a server asks in mid-call become results that ask for input, and the other
// way round.
//
// # Who remembers what
//
// Each client has connections of its own to the servers, a [link] each: its ids,
// progress tokens and subscriptions cannot meet those of others. The session id that
// a client of the legacy era holds carries the sessions of all its links, sealed.
// Whoever has the key can go on with it, so a restart or another replica loses
// nothing but caches.
package aggregate

import (
	"context"
	"crypto/cipher"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Config says what is joined, and how. The fields from Discovery on are not needed.
type Config struct {
	Name, Version string // of the server that clients see
	Servers       []*Server
	Naming        mcp.Naming
	Key           []byte        // seals sessions; 32 bytes
	JoinTimeout   time.Duration // how long a server may take to shake hands or to list what it has
	MaxClients    int           // how many are remembered
	Generation    any           // the same as that of all who are there at the same time, and no others
	Logger        *zap.Logger

	// Exiting is done when streams are to end because we do.
	Exiting context.Context

	Discovery bool   // list tools to search tools with, in place of all tools
	Tools     []Tool // of the gateway itself

	// Templates returns those of the gateway itself that a client sees, as
	// resources/templates/list has them.
	Templates func(identity string) [][]byte

	// ReadOwn returns the result of a resources/read of a resource of the gateway
	// itself. It reports whether the URI is that of one.
	ReadOwn func(r *http.Request, uri string) (result []byte, ours bool)

	// Lead returns the resource of a server that a URI of the gateway itself leads to.
	Lead func(uri string) (server, original string, ok bool)

	// Sees reports whether a client may know of a server. Others are never contacted
	// for it.
	Sees func(identity, server string) bool

	// Hears reports whether a client may hear of changes of a resource.
	Hears func(identity, server, uri string) bool

	// Others reports whether a client may tell a server what the protocol does not know.
	Others func(identity, server string) bool

	// View returns a text that changes with what a client is shown. Servers are asked
	// again for lists that were shown before, and listened to anew.
	View func(identity string) string

	// Standing returns a text that changes with what lets a client in. When it has,
	// streams are ended, and the client has to come back.
	Standing func(identity string) string

	// Concerned returns the servers that a notification of a client is for. It reports
	// whether it is for these only.
	Concerned func(method string) (servers []string, some bool)
}

// A Tool is a tool of the gateway itself.
type Tool struct {
	Name       string
	Descriptor []byte // as tools/list has it
	Call       func(r *http.Request, arguments []byte) (result []byte)
}

// An Aggregate is an MCP server out of many.
type Aggregate struct {
	config  Config
	servers map[string]*Server // by name and alias
	ids     map[string]*Server // by ID
	seal    cipher.AEAD

	fingerprint string // of all servers
	// Guarded by State.mu.
	alone bool   // of its generation
	left  bool   // it serves no more requests
	place *place // the same for all that took it one after the other
	*State
}

// A place is where Aggregates take over from each other. A stream holds the one that it was
// opened at, and by this the one that serves now, but none in between.
type place struct {
	current *Aggregate // nil if nobody knows
}

// New returns an Aggregate whose clients are those of a State. It has to be closed.
func New(config Config, state *State) *Aggregate {
	a := &Aggregate{
		config:  config,
		servers: map[string]*Server{},
		ids:     map[string]*Server{},
		seal:    newSeal(config.Key),
		State:   state,
	}
	for _, s := range config.Servers {
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			a.servers[name] = s
		}
		a.ids[s.ID] = s
		a.fingerprint += s.ID + "\x00"
	}
	a.place = &place{a}
	state.join(a)
	return a
}

// Close says that another Aggregate with the same State takes over, if there is one.
// Requests that are being served are served to their end.
func (a *Aggregate) Close() { a.leave(a) }

// transparent reports whether there is one server, which is shown as it is.
func (a *Aggregate) transparent() bool { return a.config.Naming.Separator == "" }

// A Result says how a request was served.
type Result struct {
	Server  string           // which one it was for, if for one
	Name    string           // of what was called there
	Sent    bool             // it was passed on to that server
	Failure *jsonrpc.Failure // is still to be answered
	Code    int              // of the JSON-RPC error that was answered
	Symbol  string           // of that error, if it is of our making
	Torn    bool             // a part of the answer was sent, and the rest will never come
}

// byID returns the server that is the same as another.
func (a *Aggregate) byID(id string) *Server { return a.ids[id] }

// of returns the server that a link is to. There may be another of its name.
func (a *Aggregate) of(l *link) *Server { return a.ids[l.id] }
