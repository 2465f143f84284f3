package gateway

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An introduction is what a client says about itself.
type introduction struct {
	params       []byte // params of initialize; legacy only
	capabilities []byte
	info         []byte
}

// readIntroduction reads the params of initialize.
func readIntroduction(params []byte) *introduction {
	var p struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Info         json.RawMessage `json:"clientInfo"`
	}
	_ = json.Unmarshal(params, &p) // invalid members stay empty
	return introduction{params, p.Capabilities, p.Info}.complete()
}

// complete fills in members that the protocol requires.
func (intro introduction) complete() *introduction {
	if len(intro.capabilities) == 0 || intro.capabilities[0] != '{' {
		intro.capabilities = []byte("{}")
	}
	if len(intro.info) == 0 || intro.info[0] != '{' {
		intro.info = []byte(`{"name":"unknown","version":"0"}`)
	}
	return &intro
}

// size returns the size in bytes.
func (intro *introduction) size() int {
	return len(intro.params) + len(intro.capabilities) + len(intro.info)
}

// minimalParams returns params of initialize without optional data, such as icons.
func (intro *introduction) minimalParams(version string) []byte {
	var info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	_ = json.Unmarshal(intro.info, &info) // invalid members stay empty
	info.Name, info.Version = mcp.Shortened(info.Name), mcp.Shortened(info.Version)
	return jsonrpc.Encode(map[string]any{
		"protocolVersion": version, "capabilities": json.RawMessage(intro.capabilities), "clientInfo": info,
	})
}

// supports reports whether the client declared support for a server request.
func (intro *introduction) supports(method string) bool {
	return mcp.AcceptsServerRequest(intro.capabilities, method)
}

// supportsAny reports whether the client declared support for any server request.
func (intro *introduction) supportsAny() bool {
	return slices.ContainsFunc([]string{"roots/list", "sampling/createMessage", "elicitation/create"}, intro.supports)
}

// meta returns the _meta members of modern requests that describe the client.
func (intro *introduction) meta(level string) []byte {
	return mcp.RequestMeta(intro.info, intro.capabilities, level)
}

// introductionTooLarge refuses a client whose introduction exceeds a limit.
func introductionTooLarge(message string) *jsonrpc.Failure {
	failure := jsonrpc.PayloadTooLarge()
	failure.Message = message
	return failure
}

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
