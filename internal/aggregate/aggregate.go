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
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Config says what is joined, and how. All fields are needed but Instructions,
// Tools, Templates, ReadOwn and Discovery.
type Config struct {
	Name, Version string // of the server that clients see
	Servers       []*Server
	Naming        mcp.Naming
	Key           []byte        // seals sessions; 32 bytes
	JoinTimeout   time.Duration // how long a server may take to shake hands or to list what it has
	MaxClients    int           // how many are remembered
	Discovery     bool          // list tools to search tools with, in place of all tools
	Tools         []Tool        // of the gateway itself
	Templates     [][]byte      // of resources of the gateway itself, as resources/templates/list has them
	Generation    any           // the same as that of all who are there at the same time, and no others
	Logger        *zap.Logger

	// Exiting is done when streams are to end because we do.
	Exiting context.Context

	// ReadOwn returns the result of a resources/read of a resource of the gateway
	// itself. It reports whether the URI is that of one.
	ReadOwn func(r *http.Request, uri string) (result []byte, ours bool)
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
	alone bool       // of its generation
	left  bool       // it serves no more requests
	next  *Aggregate // who does; nil if nobody knows
	*State
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

// A Server is one of the servers that are joined.
type Server struct {
	Name     string
	ID       string // the same as that of another if they are the same in all that clients can see
	Aliases  []string
	Expose   []string // patterns of the names of tools that are shown; all if there are none
	Upstream Upstream

	mu     sync.Mutex
	speaks [2]opinion // by era
	outage outage
}

// An outage is a time in which a server cannot be reached. Of all clients one tries
// now and then whether it is over; it costs the others no time.
type outage struct {
	failure  *jsonrpc.Failure // nil if there is none
	failures int              // in a row
	retry    time.Time        // not before
	trying   bool             // somebody does
}

// out returns why it is of no use to talk to the server now. Whoever gets nil has to
// say how it went.
func (s *Server) out() *jsonrpc.Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := &s.outage; o.failure != nil {
		if o.trying || time.Now().Before(o.retry) {
			return o.failure
		}
		o.trying = true
	}
	return nil
}

// tried notes whether the server could be reached. It returns after what pause it is
// tried again.
func (s *Server) tried(failure *jsonrpc.Failure) (pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failure == nil {
		s.outage = outage{}
		return 0
	}
	o := &s.outage
	pause = min(time.Second<<min(o.failures, 5), 30*time.Second)
	o.failure, o.trying, o.retry = failure, false, time.Now().Add(pause)
	o.failures++
	return pause
}

// gaveUp notes that nobody knows how it went.
func (s *Server) gaveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage.trying = false
}

// unreachable reports whether a failure is of the server and not of what was asked.
func unreachable(failure *jsonrpc.Failure) bool {
	return failure.Data.Symbol == "timeout" || failure.Data.Symbol == "connect_error"
}

// An opinion is what is known of a server.
type opinion uint8

const (
	unknown opinion = iota
	yes
	no
)

// brief returns what tells a server from another of the same name.
func (s *Server) brief() string {
	sum := sha256.Sum256([]byte(s.ID))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

func (s *Server) learn(era mcp.Era, speaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.speaks[era] = no
	if speaks {
		s.speaks[era] = yes
	}
}

// knows reports whether the server is known to speak in an era.
func (s *Server) knows(era mcp.Era) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.speaks[era] == yes
}

// eras returns in which eras the server is to be spoken to, the most promising
// first: that of the client, unless the server is known not to speak it.
func (s *Server) eras(client mcp.Era) [2]mcp.Era {
	s.mu.Lock()
	defer s.mu.Unlock()
	other := mcp.Modern - client
	if s.speaks[client] == no && s.speaks[other] != no {
		return [2]mcp.Era{other, client}
	}
	return [2]mcp.Era{client, other}
}

// shows reports whether clients may see a tool of the server, and call it.
func (s *Server) shows(tool string) bool {
	return len(s.Expose) == 0 || slices.ContainsFunc(s.Expose, func(pattern string) bool { return mcp.MatchName(pattern, tool) })
}
