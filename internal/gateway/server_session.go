package gateway

import (
	"context"
	"crypto/rand"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A serverSession is what a link knows about its session with the server. Its methods send nothing.
type serverSession struct {
	mu          sync.Mutex
	opening     chan struct{} // closed when the running attempt to connect ends; nil if none runs
	ready       bool          // the link is open
	failed      bool          // the last attempt to connect failed
	initialized bool          // the server has got notifications/initialized
	unsynced    bool          // the server misses requests that the client made at another replica
	attempts    int           // attempts to send notifications/initialized
	ticket      linkTicket    // era, version, id and abilities
	lost        string        // session that the server no longer knows; another replica may have begun a new one
	info        *serverInfo   // nil if another process began the session
	carried     bool          // the client's session id carries the session
	used        bool          // the client has sent requests in the session
}

// beginOpening waits until no other attempt to connect runs. If it reports true, the caller must
// call endOpening.
func (s *serverSession) beginOpening(ctx context.Context) bool {
	for {
		s.mu.Lock()
		another := s.opening
		if another == nil {
			s.opening = make(chan struct{})
		}
		s.mu.Unlock()
		if another == nil {
			return true
		}
		select {
		case <-another:
		case <-ctx.Done():
			return false
		}
	}
}

func (s *serverSession) endOpening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.opening)
	s.opening = nil
}

// begin sets the session that a handshake has begun.
func (s *serverSession) begin(t linkTicket, info *serverInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ticket, s.info, s.carried = t, info, false
	s.initialized, s.unsynced = t.Era == mcp.Modern, false
}

// noteOpened notes the result of an attempt to connect. A failure does not close a link that another
// attempt has opened in the meantime.
func (s *serverSession) noteOpened(failure *jsonrpc.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = s.ready || failure == nil
	s.failed = !s.ready
}

// lose notes that the server no longer knows the session with an id. It reports false if that is
// not the current one. With remember, the session is not used again if another replica still has
// it. forget forgets what belongs to the session, before another one can begin.
func (s *serverSession) lose(id string, remember bool, forget func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || s.ticket.Session != id {
		return false
	}
	s.ready, s.initialized, s.attempts, s.ticket.Session = false, false, 0, ""
	if remember {
		s.lost = id
	}
	forget()
	return true
}

// end closes the link. It returns the session that has to be ended at the server.
func (s *serverSession) end() linkTicket {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := s.ticket
	s.ready, s.ticket.Session = false, ""
	return ended
}

// isOpen reports whether the link is open.
func (s *serverSession) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// hasFailed reports whether the last attempt to connect failed.
func (s *serverSession) hasFailed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// current returns the session, as another process needs it to continue the session. Its id is empty
// if there is none.
func (s *serverSession) current() linkTicket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ticket
}

// serverInfo returns the server's description of itself.
func (s *serverSession) serverInfo() *serverInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.info == nil {
		return &serverInfo{can: s.ticket.Can, hasSession: s.ticket.Session != ""}
	}
	return s.info
}

// markUsed notes that the client sends requests in the session. From then on, the server may show
// it other lists than other clients.
func (s *serverSession) markUsed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = true
}

// isUsed reports whether the client has sent requests in the session.
func (s *serverSession) isUsed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// carry returns the ticket of an open link, and notes that the client's session id carries it.
func (s *serverSession) carry() (t linkTicket, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.carried = s.ready
	return s.ticket, s.ready
}

// markCarried notes that the record of the client's session carries the session.
func (s *serverSession) markCarried() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.carried = true
}

// isCarried reports whether the client's session id is enough to continue the session.
func (s *serverSession) isCarried() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.carried || s.ticket.Session == ""
}

// replace sets a session that another process has begun, and returns the previous one. It reports
// false if the server no longer knows the session.
func (s *serverSession) replace(t linkTicket) (before linkTicket, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Session != "" && t.Session == s.lost {
		return linkTicket{}, false
	}
	before = s.ticket
	s.use(t)
	return before, true
}

// use sets a session that another process has begun. The caller holds the lock.
func (s *serverSession) use(t linkTicket) {
	s.ticket = t
	s.initialized, s.carried, s.used = true, true, true
}

// reject returns to an earlier session, because the server does not know the one of t.
func (s *serverSession) reject(t, before linkTicket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ticket, s.lost = before, t.Session
	s.initialized, s.carried = false, false
}

// useRecorded replaces the session from the client's session id by the one of the record. It keeps
// a session that this replica has begun itself while the store was unavailable. An attempt to
// connect that runs now reads the record itself.
func (s *serverSession) useRecorded(t linkTicket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.info == nil && s.opening == nil && t.Session != s.lost {
		s.use(t)
		s.ready, s.failed = true, false
	}
}

// isInitialized reports whether the server has got notifications/initialized and all that the
// client asked for, or is not connected.
func (s *serverSession) isInitialized() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.initialized && !s.unsynced || !s.ready
}

// setInitialized notes whether a legacy server has got notifications/initialized.
func (s *serverSession) setInitialized(initialized bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready && s.carried && s.ticket.Era == mcp.Legacy {
		s.initialized = initialized
	}
}

// noteInitialized notes an attempt to send notifications/initialized. It reports whether it was the
// last one: the server got the notification, or will never take it.
func (s *serverSession) noteInitialized(failure *jsonrpc.Failure) (last bool) {
	const tries = 3
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	s.initialized = failure == nil || s.attempts == tries ||
		failure.Data.StatusCode != 0 && !isTemporary(failure.Data.StatusCode)
	return s.initialized
}

// markUnsynced notes that the server misses a change from another replica. Servers whose session is
// shared have got it there; those of child processes are never shared.
func (s *serverSession) markUnsynced(isChild bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := !s.carried || isChild || httpsse.IsSession(s.ticket.Session)
	s.unsynced = s.unsynced || own && s.ready && s.ticket.Era == mcp.Legacy
}

// takeUnsynced reports whether an initialized server misses requests that the client made at other
// replicas. It resets that state: the caller sends them now.
func (s *serverSession) takeUnsynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	unsynced := s.unsynced
	s.unsynced = false
	return unsynced && s.initialized
}

// A linkTicket is what a process needs to continue the session with one server.
type linkTicket struct {
	Server  string        `json:"i,omitempty"` // short ID of the server
	Era     mcp.Era       `json:"e,omitempty"`
	Version string        `json:"v,omitempty"`
	Session string        `json:"s,omitempty"`
	Can     mcp.Abilities `json:"c,omitempty"`
}

// setHeaders sets the headers of a request in the session.
func (t linkTicket) setHeaders(header http.Header) {
	streamable.Session{Era: t.Era, Version: t.Version, ID: t.Session}.SetHeaders(header)
}

// linkLists are the lists of a server that are cached for one client only.
type linkLists struct {
	mu        sync.Mutex
	cache     *catalog.Cache
	listeners [mcp.ListKindCount]int // streams that bring list-changed notifications, by kind
}

// get returns the cache.
func (l *linkLists) get() *catalog.Cache {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cache == nil {
		l.cache = catalog.NewCache(l.listeners)
	}
	return l.cache
}

// drop drops the cache.
func (l *linkLists) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cache = nil
}

// listen adds n to the streams that bring notifications about lists.
func (l *linkLists) listen(lists []mcp.ListKind, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range lists {
		l.listeners[k] += n
	}
	if l.cache != nil {
		l.cache.Listen(lists, n)
	}
}

// hasListener reports whether a stream of the server is being read.
func (l *linkLists) hasListener() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listeners[mcp.Tools] > 0
}

// size returns the approximate memory use.
func (l *linkLists) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cache == nil {
		return 0
	}
	return 1 << 10
}

// requestIDs makes ids for the gateway's own requests in a link. They differ from the ids of
// clients, and of other processes that use the same session.
type requestIDs struct {
	prefix string
	last   atomic.Uint64
}

func newRequestIDs() requestIDs { return requestIDs{prefix: strings.Clone(rand.Text()[:8])} }

// next returns a new id.
func (ids *requestIDs) next() []byte {
	return append(strconv.AppendUint([]byte(`"gateway:`+ids.prefix+":"), ids.last.Add(1), 10), '"')
}
