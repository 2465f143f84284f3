package gateway

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A ticket is the content of a session id: all it takes to go on with the session.
type ticket struct {
	Identity string                `json:"i,omitempty"`
	Address  string                `json:"a,omitempty"` // where it began, if its client is unknown
	Issued   int64                 `json:"t"`           // when, in seconds since 1970
	Version  string                `json:"v"`
	Hello    json.RawMessage       `json:"h"` // params of its initialize
	Links    map[string]linkTicket `json:"l,omitempty"`
}

// ticket returns what it takes to go on with the session of a client elsewhere.
func (c *client) ticket(links map[string]linkTicket) ticket {
	t := ticket{
		Identity: c.identity, Issued: c.issued.Unix(), Version: c.version, Hello: c.introduction.params, Links: links,
	}
	if c.identity == "" {
		t.Address = strings.TrimPrefix(c.owner, "@")
	}
	return t
}

// A linkTicket is what it takes to go on with the session of one server.
type linkTicket struct {
	Server  string        `json:"i,omitempty"` // which one it was, in short
	Era     mcp.Era       `json:"e,omitempty"`
	Version string        `json:"v,omitempty"`
	Session string        `json:"s,omitempty"`
	Can     mcp.Abilities `json:"c,omitempty"`
}

// A sealer makes what clients hold for us.
type sealer struct{ seal.Sealer }

// sealTicket returns the session id that carries t. If it would be too long, what the
// servers call the client is left out: it is known here, and others can ask for it.
// There is none for a client that has too much to say of itself.
func (s sealer) sealTicket(t ticket) (id string) {
	if id = s.Seal("session", packed(t)); len(id) > longestSession {
		t.Links = nil
		id = s.Seal("session", packed(t))
	}
	if len(id) > longestSession {
		t.Hello = readIntroduction(t.Hello).shortened(t.Version)
		id = s.Seal("session", packed(t))
	}
	if len(id) > longestSession {
		return ""
	}
	return id
}

// openTicket returns what a session id carries.
func (s sealer) openTicket(id string) (t ticket, ok bool) {
	plain, ok := s.Open("session", id)
	if !ok {
		return ticket{}, false
	}
	if !bytes.HasPrefix(plain, []byte("{")) {
		var err error
		if plain, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(plain)), largestTicket)); err != nil {
			return ticket{}, false
		}
	}
	ok = json.Unmarshal(plain, &t) == nil
	return t, ok
}

// smallTicket is up to how many bytes a ticket is not compressed: that would take longer than all the
// rest of a handshake, and most of a megabyte.
const smallTicket = 512

// packed returns a ticket as JSON. A large one is compressed: that begins with a block which is not the
// last, so the lowest bit is 0, and JSON begins with a brace, in which it is 1.
func packed(t ticket) []byte {
	text, _ := json.Marshal(t) // of strings, numbers and JSON that has been read: it cannot fail
	if len(text) <= smallTicket {
		return text
	}
	var b bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	return b.Bytes()
}

// packers are kept between sessions: each takes most of a megabyte.
var packers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.DefaultCompression) // which is a level that there is
	return w
}}

// sessionTime is how long a session may last. That it has ended is known only where it was ended, and where that can
// be told, so its id is good elsewhere until then.
const sessionTime = 7 * 24 * time.Hour

// sessionsOver are the sessions that have ended before their time. It is guarded by
// State.mu.
type sessionsOver struct {
	ids *quota.Cache[[16]byte, sessionOver] // by a hash of their ids

	// When there are too many of an owner, those that it began up to a time have all
	// ended.
	until map[string]time.Time
}

// A sessionOver is a session that has ended.
type sessionOver struct {
	owner  string
	issued time.Time
}

const (
	maxSessionsOver = 100_000 // 30 MB
	maxOwnersOver   = 1_000
)

var keptOver = quota.NewKind("ended_sessions")

func newSessionsOver() sessionsOver {
	over := sessionsOver{until: map[string]time.Time{}}
	over.ids = quota.NewCache(keptOver, quota.Limits{Entries: maxSessionsOver}, sessionTime, func(_ [16]byte, s sessionOver) {
		if time.Since(s.issued) < sessionTime && over.until[s.owner].Before(s.issued) {
			over.until[s.owner] = s.issued
		}
	})
	return over
}

// add notes that a session has ended.
func (over *sessionsOver) add(key [16]byte, s sessionOver) {
	over.ids.Put(s.owner, key, s, 0)
	if len(over.until) > maxOwnersOver {
		over.forgetOldest()
	}
}

// forgetOldest makes room for another owner. The one that is forgotten can use its own
// sessions again until they are too old. That is better than to end those of anybody else.
func (over *sessionsOver) forgetOldest() {
	var oldest string
	for owner, until := range over.until {
		if oldest == "" || until.Before(over.until[oldest]) {
			oldest = owner
		}
	}
	delete(over.until, oldest)
}

// overKey returns the key of a session in sessionsOver. The caller holds State.mu.
func overKey(c *client) [16]byte {
	if c.over == [16]byte{} {
		c.over = overKeyOf(c.key)
	}
	return c.over
}

// overKey returns the key of a session in sessionsOver.
func (s *State) overKey(c *client) [16]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return overKey(c)
}

// overKeyOf returns the key of a session, by its id.
func overKeyOf(id string) [16]byte {
	sum := sha256.Sum256([]byte(id))
	return [16]byte(sum[:])
}

// restore gives a client the links of a ticket.
func (c *client) restore(tickets map[string]linkTicket, servers []*upstream.Server) *client {
	for _, s := range servers {
		t, ok := tickets[s.Name]
		if !ok || t.Server != s.ShortID() {
			continue
		}
		l := c.link(s)
		l.ready, l.initialized, l.carried, l.used = true, true, true, true
		l.era, l.version, l.session, l.can = t.Era, t.Version, t.Session, t.Can
	}
	return c
}
