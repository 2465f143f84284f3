package mcpgateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// The body of a request to the admin API is taken if and only if encoding/json finds in it
// one object with members of these names, and all of them strings. What is wrong with
// another is said without a word about Go.
func FuzzAdminBody(f *testing.F) { // A70, A72
	for _, body := range []string{
		`{"name":"a","uriTemplate":"a:{b}","text":"x"}`, `{"gateway":"one","server":"s","uri":"c:d"}`, `{"name":7}`, `{"nam":"a"}`, `{"name":"a"}{}`, `{"name":"a"`, `[]`, `null`, ``, ` {} `, `{"name":null}`, `{"NAME":"a"}`, `{"name":{"a":1}}`, "{\"name\":\"\xff\"}", `{"name":"a","name":"b"}`, `{"name":"a"} x`, `{name}`,
		`[f`, // the oracle looped forever on an array that is not JSON
	} {
		f.Add(body, true)
		f.Add(body, false)
	}
	names := []string{"gateway", "name", "uriTemplate", "title", "description", "mimeType", "text", "server", "uri"}
	f.Fuzz(func(t *testing.T, body string, optional bool) {
		c := &adminCall{r: httptest.NewRequest(http.MethodPost, "/mcp_gateway/templates", strings.NewReader(body))}
		var template gatewayTemplate
		err := c.decode(&template, optional)
		var object map[string]any
		isObject := json.Unmarshal([]byte(body), &object) == nil && object != nil
		want := isObject || optional && strings.TrimSpace(body) == ""
		exact := !jsontest.Repeats([]byte(body))
		for name, value := range object {
			_, isText := value.(string)
			want = want && (isText || value == nil) && slices.ContainsFunc(names, func(one string) bool { return strings.EqualFold(one, name) })
			exact = exact && slices.Contains(names, name)
		}
		if (err == nil) != want {
			t.Fatalf("%q: %v, want it taken: %t", body, err, want)
		}
		if err == nil {
			got := []string{template.Gateway, template.Name, template.URITemplate, template.Title, template.Description, template.MIMEType, template.Text, template.Server, template.URI}
			for i, name := range names {
				if said, _ := object[name].(string); exact && got[i] != said {
					t.Fatalf("%q: %s is %q, want %q", body, name, got[i], said)
				}
			}
			return
		}
		var failure *adminError
		if !errors.As(err, &failure) || failure.status != http.StatusBadRequest || failure.Message == "" || failure.Code != "invalid_request" {
			t.Fatalf("%q: %#v", body, err)
		}
		for _, word := range []string{"json:", "Go ", "struct", "unmarshal"} {
			if strings.Contains(failure.Message, word) && !strings.Contains(body, word) {
				t.Fatalf("%q: %s", body, failure.Message)
			}
		}
	})
}

// A session is that of its client: nobody else has it, and nothing else is it.
func FuzzBoundSession(f *testing.F) { // A30, A57
	f.Add("of the server.1", "ann", "a", "bob", "b", "")
	f.Add("", "ann", "a", "", "a", ".")
	f.Add("x", "ann", "a\x00b", "ann", "a", "x.")
	f.Add("id", "a\x00b", "s", "a", "s\x00b", "id.AAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, id, identity, server, otherIdentity, otherServer, made string) {
		at := func(identity, server string) *exchange {
			return &exchange{handler: &Handler{sessionKey: []byte("a key of this test")}, server: &Server{Name: server}, door: mcpDoor, caller: caller{identity: identity}}
		}
		claims := func(x *exchange, session string) (string, bool) {
			header := http.Header{mcp.SessionHeader: {session}}
			failure := x.claimSession(header)
			return header.Get(mcp.SessionHeader), failure == nil
		}
		own := at(identity, server)
		if identity == "" {
			return // nobody in particular has no session of its own
		}
		bound := own.bindSession(id)
		if got, ok := claims(own, bound); got != id || !ok {
			t.Fatalf("%q is %q to its own client, %t", bound, got, ok)
		}
		if _, ok := claims(own, made); ok && own.bindSession(made[:strings.LastIndexByte(made, '.')]) != made {
			t.Fatalf("%q is a session", made)
		}
		if otherIdentity == "" || strings.ContainsRune(identity+otherIdentity+server+otherServer+id, 0) {
			return // no name has such a character
		}
		if _, ok := claims(at(otherIdentity, otherServer), bound); ok != (otherIdentity == identity && otherServer == server) {
			t.Fatalf("%q of %q at %q is that of %q at %q: %t", bound, identity, server, otherIdentity, otherServer, ok)
		}
		if failure := own.claimSession(http.Header{mcp.SessionHeader: {bound, bound}}); failure == nil {
			t.Fatal("two of them are one")
		}
	})
}

// The token in a message is the one that encoding/json finds there, and what goes on to a
// server has none (A30, A31).
func FuzzAuthToken(f *testing.F) {
	for _, message := range []string{
		`{"method":"m","params":{"proxy":{"authToken":"t\u0061"}}}`, `{"method":"m","params":{"a":1,"proxy":{"authToken":"t"},"b":2}}`, `{"method":"m","params":{"proxy":"t"}}`, `{"method":"m","params":{"proxy":{"authToken":7}}}`,
		`{"method":"m","params":{"Proxy":{"authToken":"t"}}}`, `{"method":"m","params":{"proxy":{"authToken":"a","authToken":"b"}}}`, `{"method":"m","params":{"proxy":{},"proxy":{"authToken":"b"}}}`, `{"method":"m","params":{"proxy\u0000":{"authToken":"b"}}}`, `{"method":"m"}`,
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
		if _ = json.Unmarshal(proxy["authToken"], &token); m.Text(jsonrpc.AuthToken) != token {
			t.Fatalf("%q has the token %q, want %q", message, m.Text(jsonrpc.AuthToken), token)
		}
		// Who ignores the case of names reads no other.
		var folded struct {
			Params struct {
				Proxy struct{ AuthToken any }
			}
		}
		if json.Unmarshal(message, &folded) == nil {
			if text, _ := folded.Params.Proxy.AuthToken.(string); text != token {
				t.Fatalf("%q has the token %q for some, and %q here", message, text, token)
			}
		}
	})
}

// No event of a stream names an endpoint that is not ours, however it is written and
// however it comes in pieces. Nothing else is changed.
func FuzzSealedEndpoints(f *testing.F) {
	for _, stream := range []string{
		"event: endpoint\ndata: /mcp/files\n\n", "data: {}\n\nevent: endpoint\ndata: /mcp/files\n\n", "event: endpoint\r\ndata: /a\r\n\r\nevent: endpoint\rdata: /b\r\r", "\ufeffevent:endpoint\ndata:/x\n\n",
		"event: endpoint\nevent: message\ndata: x\n\n", "data: /x\nevent: endpoint\n\n", ": ping\n: ping\n\nid: 1\nevent: endpoint\n\n", "event: endpoint\ndata: mailto:x\n\n", "event: endpoint\ndata: /x", "data: /x\nevent: endpoint", "{}\n",
	} {
		f.Add(stream, uint8(0))
		f.Add(stream, uint8(6))
	}
	target, _ := url.Parse("/v1/sse")
	s := &Server{Name: "old", target: target}
	f.Fuzz(func(t *testing.T, stream string, size uint8) {
		if strings.HasPrefix(stream, "\xef") && !strings.HasPrefix(stream, "\uFEFF") {
			return // a part of a byte order mark, of which nobody says what it is
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

// readEvents reads an event stream line by line, as the standard has it.
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
