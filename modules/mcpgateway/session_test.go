package mcpgateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestSessionsOfOneServer(t *testing.T) { // A30, A57
	const id = "of the server.1"
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		if got.is("initialize") {
			w.Header().Set(mcp.SessionHeader, id)
		}
		says(w, got, `{}`)
	})
	h := gateway(t, `{"servers":[`+server.line("a")+`,`+server.line("b")+`]}`)
	begin := func(user string) string {
		return servesUser(t, h, user, posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)).Header().Get(mcp.SessionHeader)
	}
	anns, nobodys := begin("ann"), begin("")
	if nobodys != id || anns == id || !strings.HasPrefix(anns, id+".") {
		t.Fatalf("ann has %q, and who is nobody in particular %q", anns, nobodys)
	}
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	for _, tt := range []struct {
		name, user, path, session string
		good                      bool
	}{
		{"its own", "ann", "/mcp/a", anns, true},
		{"of nobody in particular", "", "/mcp/a", nobodys, true},
		{"of another client", "bob", "/mcp/a", anns, false},
		{"as the server knows it", "ann", "/mcp/a", id, false},
		{"as the server knows it, by another client", "bob", "/mcp/a", id, false},
		{"as the server knows it, where there are no sessions", "bob", "/api/mcp-gateway/a/rpc", id, false},
		{"of another server", "ann", "/mcp/b", anns, false},
		{"of none", "ann", "/mcp/a", ".", false},
		{"that is cut off", "ann", "/mcp/a", anns[:len(anns)-1], false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(server.saw())
			w := servesUser(t, h, tt.user, posting(tt.path, ping, mcp.SessionHeader, tt.session))
			named := slices.ContainsFunc(server.saw()[before:], func(got witnessed) bool { return got.header.Get(mcp.SessionHeader) != "" })
			switch {
			case tt.good && (w.Code != http.StatusOK || server.saw()[before].header.Get(mcp.SessionHeader) != id):
				t.Errorf("%d %s; the server got %+v", w.Code, w.Body, server.saw()[before:])
			case !tt.good && named:
				t.Errorf("%d %s; the server takes it for one of that session", w.Code, w.Body)
			case !tt.good && tt.path != "/api/mcp-gateway/a/rpc" && !strings.Contains(w.Body.String(), "unknown_session"):
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

func TestTwoSessionsInOneRequest(t *testing.T) { // A30, A57
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		w.Header().Set(mcp.SessionHeader, "of the server")
		says(w, got, `{}`)
	})
	h := gateway(t, `{"servers":[`+server.line("a")+`]}`)
	bobs := servesUser(t, h, "bob", posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)).Header().Get(mcp.SessionHeader)
	for name, sessions := range map[string][]string{
		"none, and another's": {"", "victim"},
		"another's, and none": {"victim", ""},
		"his own, and more":   {bobs, "victim"},
		"his own, twice":      {bobs, bobs},
		"none":                {""},
	} {
		for _, path := range single {
			t.Run(name+" at "+path, func(t *testing.T) {
				before := len(server.saw())
				r := posting(path, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
				r.Header[mcp.SessionHeader] = sessions
				w := servesUser(t, h, "bob", r)
				if all := server.saw()[before:]; len(all) > 0 || w.Code != http.StatusNotFound {
					t.Errorf("%d %s; the server got %+v", w.Code, w.Body, all)
				}
			})
		}
	}
}
