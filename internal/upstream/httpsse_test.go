package upstream

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

var testSealer = seal.New("test", []byte("a key of these tests"))

// sealAll seals a stream that is read in pieces of a size.
func sealAll(s *Server, stream string, size int) (string, error) {
	x := &Exchange{Shared: &Shared{Sealer: testSealer}, Server: s, Kind: Single, Path: "/mcp/old",
		Caller: access.Caller{Identity: "ann"}}
	sealer := endpointSealer{x: x}
	var all []byte
	for piece := range slices.Chunk([]byte(stream), size) {
		passed, err := sealer.seal(piece)
		all = append(all, passed...)
		if err != nil {
			return string(all), err
		}
	}
	return string(append(all, sealer.rest()...)), nil
}

func TestEndpoints(t *testing.T) {
	target, _ := url.Parse("/v1/sse?x=1")
	s := &Server{Name: "old", Target: target}
	const end = "\n\n"
	for _, tt := range []struct{ name, event, uri string }{
		{"a path", "event: endpoint\ndata: /messages?s=1" + end, "/messages?s=1"},
		{"a relative path", "event:endpoint\r\ndata:messages?s=1\r\n\r\n", "/v1/messages?s=1"},
		{"a query", "data: ?s=1\nevent: endpoint" + end, "/v1/sse?s=1"},
		{"a URL", "event: endpoint\ndata: https://u:p@elsewhere/a%2Fb" + end, "/a%2Fb"},
		{"two lines", "event: endpoint\ndata: /mess\ndata: ages" + end, "/messages"},
		{"lines that end with CR", "event: endpoint\rdata: /messages\r\r", "/messages"},
		{"after a byte order mark", "\ufeffevent: endpoint\ndata: /messages" + end, "/messages"},
		{"a name that some clients accept", "event:  Endpoint\ndata: /messages" + end, "/messages"},
		{"an address that is not a URL", "event: endpoint\ndata: mailto:x" + end, "error"},
		{"an address that only browsers accept", "event: endpoint\ndata: /mcp/files?%zz#%zz" + end, "error"},
		{"a name after long data", "data: " + strings.Repeat("x", longestEndpoint) + "\nevent: endpoint" + end, "error"},
		{"another event", "event: message\ndata: /messages" + end, ""},
		{"an event without a name", "data: /messages" + end, ""},
		{"an incomplete event", "data: /messages\n", ""},
		{"not a stream", "not found", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sealAll(s, tt.event, 5)
			if (err != nil) != (tt.uri == "error") {
				t.Fatalf("%q: %v", got, err)
			}
			if tt.uri == "error" {
				return
			}
			if tt.uri == "" {
				if got != tt.event {
					t.Errorf("rewritten: %q", got)
				}
				return
			}
			_, token, ok := strings.Cut(got, "/mcp/old?endpoint=")
			if !ok {
				t.Fatalf("%q", got)
			}
			token, _, _ = strings.Cut(strings.ReplaceAll(token, "\r", "\n"), "\n")
			u, failure := binding{testSealer, s.Name, "ann"}.openEndpoint(token)
			if failure != nil || u.RequestURI() != tt.uri {
				t.Errorf("%v %v", u, failure)
			}
			if _, failure := (binding{testSealer, s.Name, "bob"}).openEndpoint(token); failure == nil {
				t.Error("the endpoint is valid for another client")
			}
			if _, failure := (binding{testSealer, "other", "ann"}).openEndpoint(token); failure == nil {
				t.Error("the endpoint is valid for another server")
			}
		})
	}
}

// FuzzBoundSession checks that a bound session id is valid only for its client, and that no other
// text is valid.
func FuzzBoundSession(f *testing.F) { // A30, A57
	f.Add("of the server.1", "ann", "a", "bob", "b", "")
	f.Add("", "ann", "a", "", "a", ".")
	f.Add("x", "ann", "a\x00b", "ann", "a", "x.")
	f.Add("id", "a\x00b", "s", "a", "s\x00b", "id.AAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, id, identity, server, otherIdentity, otherServer, made string) {
		at := func(identity, server string) *Exchange {
			g := &Shared{Sealer: testSealer}
			return &Exchange{Shared: g, Server: &Server{Name: server}, Kind: Single, PostedMessage: new(PostedMessage),
				Caller: access.Caller{Identity: identity}}
		}
		claims := func(x *Exchange, session string) (string, bool) {
			header := http.Header{mcp.SessionHeader: {session}}
			failure := x.binding().claimIDs(header)
			return header.Get(mcp.SessionHeader), failure == nil
		}
		own := at(identity, server)
		if identity == "" {
			return // unidentified clients have no sessions of their own
		}
		bound := own.binding().bind(boundSession, id)
		if got, ok := claims(own, bound); got != id || !ok {
			t.Fatalf("%q opens as %q for its own client: %t", bound, got, ok)
		}
		if _, ok := claims(own, made); ok && own.binding().bind(boundSession,
			made[:strings.LastIndexByte(made, '.')]) != made {
			t.Fatalf("invented %q is valid", made)
		}
		if otherIdentity == "" || strings.ContainsRune(identity+otherIdentity+server+otherServer+id, 0) {
			return // names never contain this character
		}
		if _, ok := claims(at(otherIdentity, otherServer), bound); ok != (otherIdentity == identity &&
			otherServer == server) {
			t.Fatalf("%q of %q at %q also belongs to %q at %q: %t", bound, identity, server, otherIdentity, otherServer, ok)
		}
		if failure := own.binding().claimIDs(http.Header{mcp.SessionHeader: {bound, bound}}); failure == nil {
			t.Fatal("two sessions have the same id")
		}
	})
}

// FuzzAuthToken checks that the token in a message is the one that encoding/json finds, and that
// the server does not get it (A30, A31).
func FuzzAuthToken(f *testing.F) {
	for _, message := range []string{
		`{"method":"m","params":{"proxy":{"authToken":"t\u0061"}}}`,
		`{"method":"m","params":{"a":1,"proxy":{"authToken":"t"},"b":2}}`, `{"method":"m","params":{"proxy":"t"}}`,
		`{"method":"m","params":{"proxy":{"authToken":7}}}`,
		`{"method":"m","params":{"Proxy":{"authToken":"t"}}}`,
		`{"method":"m","params":{"proxy":{"authToken":"a","authToken":"b"}}}`,
		`{"method":"m","params":{"proxy":{},"proxy":{"authToken":"b"}}}`,
		`{"method":"m","params":{"proxy\u0000":{"authToken":"b"}}}`, `{"method":"m"}`,
	} {
		f.Add([]byte(message))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		var m jsonrpc.Message
		if m.ReadRequest(message) != nil || m.CheckExact(false) != nil {
			return
		}
		var top, params, proxy map[string]json.RawMessage
		_ = json.Unmarshal(message, &top)
		_ = json.Unmarshal(top["params"], &params)
		_ = json.Unmarshal(params["proxy"], &proxy)
		var token string
		_ = json.Unmarshal(proxy["authToken"], &token)
		if m.Text(jsonrpc.AuthToken) != token {
			t.Fatalf("%q has the token %q, want %q", message, m.Text(jsonrpc.AuthToken), token)
		}
		// Readers that ignore the case of names do not find another token.
		var folded struct {
			Params struct {
				Proxy struct{ AuthToken any }
			}
		}
		if json.Unmarshal(message, &folded) == nil {
			if text, _ := folded.Params.Proxy.AuthToken.(string); text != token {
				t.Fatalf("%q has the token %q for case-insensitive readers, and %q here", message, text, token)
			}
		}
	})
}

// FuzzSealedEndpoints checks that each endpoint in a stream becomes one of the gateway, however it
// is spelled and split. Everything else is unchanged.
func FuzzSealedEndpoints(f *testing.F) {
	for _, stream := range []string{
		"event: endpoint\ndata: /mcp/files\n\n", "data: {}\n\nevent: endpoint\ndata: /mcp/files\n\n",
		"event: endpoint\r\ndata: /a\r\n\r\nevent: endpoint\rdata: /b\r\r", "\ufeffevent:endpoint\ndata:/x\n\n",
		"event: endpoint\nevent: message\ndata: x\n\n", "data: /x\nevent: endpoint\n\n",
		": ping\n: ping\n\nid: 1\nevent: endpoint\n\n", "event: endpoint\ndata: mailto:x\n\n", "event: endpoint\ndata: /x",
		"data: /x\nevent: endpoint", "{}\n",
	} {
		f.Add(stream, uint8(0))
		f.Add(stream, uint8(6))
	}
	target, _ := url.Parse("/v1/sse")
	s := &Server{Name: "old", Target: target}
	f.Fuzz(func(t *testing.T, stream string, size uint8) {
		if strings.HasPrefix(stream, "\xef") && !strings.HasPrefix(stream, "\uFEFF") {
			return // incomplete byte order mark: undefined
		}
		got, err := sealAll(s, stream, int(size)+1)
		named := false
		for _, e := range readEvents(stream) {
			named = named || strings.EqualFold(strings.TrimSpace(e.name), "endpoint")
		}
		if !named && !strings.Contains(strings.ToLower(stream), "endpoint") && (err != nil || got != stream) {
			t.Fatalf("%q became %q, %v", stream, got, err)
		}
		for _, e := range readEvents(got + "\n\n") {
			if e.name == "endpoint" && e.data != "" && !strings.HasPrefix(e.data, "/mcp/old?endpoint=") {
				t.Fatalf("%q became %q, %v", stream, got, err)
			}
		}
	})
}

type readEvent struct{ name, data string }

// readEvents parses an event stream line by line, as the standard says.
func readEvents(stream string) (events []readEvent) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream)
	var e readEvent
	lines := strings.Split(stream, "\n")
	for _, line := range lines[:len(lines)-1] {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			events = append(events, e)
			e = readEvent{}
		case name == "event":
			e.name = value
		case name == "data":
			e.data += value
		}
	}
	return events
}
