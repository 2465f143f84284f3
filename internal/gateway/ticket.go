package gateway

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"io"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

const (
	// maxSessionID is the longest session id. Clients limit the size of headers; for Node.js, all
	// of them must fit in 16 KiB.
	maxSessionID = 6 << 10
	// maxIntroduction is the largest introduction.
	maxIntroduction = 16 << 10
	// maxTicket limits the decompressed size of a ticket. Only holders of the key can make one, so
	// this is a second line of defense.
	maxTicket = 1 << 20
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

// restoreLinks adds the links of the ticket to a client.
func (t *ticket) restoreLinks(c *client, servers []*upstream.Server) {
	for _, s := range servers {
		carried, ok := t.Links[s.Name]
		if !ok || carried.Server != s.ShortID() {
			continue
		}
		l := c.linkTo(s)
		carried.Server = ""
		l.session.use(carried)
		l.session.noteOpened(nil)
	}
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
