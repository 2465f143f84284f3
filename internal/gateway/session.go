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

// A ticket is the content of a session id: all that a process needs to continue the session.
type ticket struct {
	Identity   string                `json:"i,omitempty"`
	Address    string                `json:"a,omitempty"` // address of an anonymous client
	Issued     int64                 `json:"t"`           // Unix time in seconds
	Version    string                `json:"v"`
	InitParams json.RawMessage       `json:"h"` // params of initialize
	Links      map[string]linkTicket `json:"l,omitempty"`
}

// ticket returns the ticket of the client's session.
func (c *client) ticket(links map[string]linkTicket) ticket {
	t := ticket{
		Identity: c.identity, Issued: c.issued.Unix(), Version: c.version, InitParams: c.introduction.params, Links: links,
	}
	if c.identity == "" {
		t.Address = strings.TrimPrefix(c.owner, "@")
	}
	return t
}

// A linkTicket is what a process needs to continue the session with one server.
type linkTicket struct {
	Server  string        `json:"i,omitempty"` // short ID of the server
	Era     mcp.Era       `json:"e,omitempty"`
	Version string        `json:"v,omitempty"`
	Session string        `json:"s,omitempty"`
	Can     mcp.Abilities `json:"c,omitempty"`
}

// A sealer seals tickets. Only processes with the key can open them.
type sealer struct{ seal.Sealer }

// sealTicket returns the session id that carries t. If it is too long, it leaves out the sessions
// with servers: this process knows them, and others can begin new ones. Then it shortens the
// introduction. It returns "" if even that is too long.
func (s sealer) sealTicket(t ticket) (id string) {
	if id = s.Seal("session", encodeTicket(t)); len(id) > maxSessionID {
		t.Links = nil
		id = s.Seal("session", encodeTicket(t))
	}
	if len(id) > maxSessionID {
		t.InitParams = readIntroduction(t.InitParams).minimalParams(t.Version)
		id = s.Seal("session", encodeTicket(t))
	}
	if len(id) > maxSessionID {
		return ""
	}
	return id
}

// openTicket returns the ticket in a session id.
func (s sealer) openTicket(id string) (t ticket, ok bool) {
	plain, ok := s.Open("session", id)
	if !ok {
		return ticket{}, false
	}
	if !bytes.HasPrefix(plain, []byte("{")) {
		var err error
		if plain, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(plain)), maxTicket)); err != nil {
			return ticket{}, false
		}
	}
	ok = json.Unmarshal(plain, &t) == nil
	return t, ok
}

// smallTicket is the size in bytes up to which tickets are not compressed. Compression takes longer
// than the rest of a handshake, and most of a megabyte of memory.
const smallTicket = 512

// encodeTicket encodes a ticket as JSON, compressed if it is large. The first byte tells which:
// compressed data starts with a block that is not the last, so its lowest bit is 0. In a brace it
// is 1.
func encodeTicket(t ticket) []byte {
	text, _ := json.Marshal(t) // cannot fail: strings, numbers and valid JSON
	if len(text) <= smallTicket {
		return text
	}
	var b bytes.Buffer
	w := flateWriters.Get().(*flate.Writer)
	defer flateWriters.Put(w)
	w.Reset(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	return b.Bytes()
}

// flateWriters are reused: each takes most of a megabyte.
var flateWriters = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.DefaultCompression) // fails for invalid levels only
	return w
}}

// sessionTime is the lifetime of a session. A replica that has not learned about the end of a
// session accepts its id until then.
const sessionTime = 7 * 24 * time.Hour

// endedSessions are the sessions that ended before sessionTime. It is guarded by State.mu.
type endedSessions struct {
	ids *quota.Cache[[16]byte, endedSession] // by hash of the session id

	// cutoffs are for owners with too many ended sessions: all sessions of the owner that began up
	// to this time count as ended.
	cutoffs map[string]time.Time
}

// An endedSession is a session that has ended.
type endedSession struct {
	owner  string
	issued time.Time
}

const (
	maxEndedSessions = 100_000 // 30 MB
	maxEndedOwners   = 1_000
)

var endedSessionsQuota = quota.NewKind("ended_sessions")

func newEndedSessions() endedSessions {
	ended := endedSessions{cutoffs: map[string]time.Time{}}
	onEvict := func(_ [16]byte, s endedSession) {
		if time.Since(s.issued) < sessionTime && ended.cutoffs[s.owner].Before(s.issued) {
			ended.cutoffs[s.owner] = s.issued
		}
	}
	ended.ids = quota.NewCache(endedSessionsQuota, quota.Limits{Entries: maxEndedSessions}, sessionTime, onEvict)
	return ended
}

// add adds a session that has ended.
func (ended *endedSessions) add(key [16]byte, s endedSession) {
	ended.ids.Put(s.owner, key, s, 0)
	if len(ended.cutoffs) > maxEndedOwners {
		ended.forgetOldest()
	}
}

// forgetOldest makes room for another owner. The forgotten owner can use its own ended sessions
// again until they expire. The alternative would be to end sessions of other owners.
func (ended *endedSessions) forgetOldest() {
	var oldest string
	for owner, until := range ended.cutoffs {
		if oldest == "" || until.Before(ended.cutoffs[oldest]) {
			oldest = owner
		}
	}
	delete(ended.cutoffs, oldest)
}

// endedKey returns the key of a session in endedSessions. The caller holds State.mu.
func endedKey(c *client) [16]byte {
	if c.endedKey == [16]byte{} {
		c.endedKey = endedKeyOf(c.key)
	}
	return c.endedKey
}

// endedKey returns the key of a session in endedSessions.
func (s *State) endedKey(c *client) [16]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return endedKey(c)
}

// endedKeyOf returns the key for a session id.
func endedKeyOf(id string) [16]byte {
	sum := sha256.Sum256([]byte(id))
	return [16]byte(sum[:])
}

// restore adds the links of a ticket to a client.
func (c *client) restore(tickets map[string]linkTicket, servers []*upstream.Server) *client {
	for _, s := range servers {
		t, ok := tickets[s.Name]
		if !ok || t.Server != s.ShortID() {
			continue
		}
		l := c.linkTo(s)
		l.ready, l.initialized, l.carried, l.used = true, true, true, true
		l.era, l.version, l.session, l.can = t.Era, t.Version, t.Session, t.Can
	}
	return c
}
