package mcpgateway

import (
	"net/http"
	"regexp"
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
	h := adaptGateway(t, `{"servers":[`+server.line("a")+`,`+server.line("b")+`]}`)
	begin := func(user string) string {
		return servesUser(t, h, user,
			posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)).Header().Get(mcp.SessionHeader)
	}
	anns, anonymous := begin("ann"), begin("")
	if anonymous != id || anns == id || !strings.HasPrefix(anns, id+".") {
		t.Fatalf("ann has %q, and an anonymous client %q", anns, anonymous)
	}
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	for _, tt := range []struct {
		name, user, path, session string
		good                      bool
	}{
		{"its own", "ann", "/mcp/a", anns, true},
		{"of an anonymous client", "", "/mcp/a", anonymous, true},
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
			named := slices.ContainsFunc(server.saw()[before:],
				func(got witnessed) bool { return got.header.Get(mcp.SessionHeader) != "" })
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
	h := adaptGateway(t, `{"servers":[`+server.line("a")+`]}`)
	bobs := servesUser(t, h, "bob",
		posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)).Header().Get(mcp.SessionHeader)
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

// Event IDs are valid only for the client that got them.
func TestEventsOfOneServer(t *testing.T) { // A30, A57
	const stream = "id: 5/\u00e9.x\ndata: {}\n\n" + ": id: comment\n\n" +
		"event: message\r\nid:6\r\ndata: id: data\r\n\r\n" + "id\ndata: {}\n\n" + "idle: 7\rid: 8\rretry: 3\r\r"
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, _ witnessed) {
		w.Header().Set("Content-Type", "text/event-stream")
		rest := stream
		if r.Header.Get("X-Mark") != "" {
			rest = "\ufeffid: 9\n" + stream
		}
		for rest != "" {
			piece := rest[:min(len(rest), 3)]
			rest = rest[len(piece):]
			_, _ = w.Write([]byte(piece))
		}
	})
	h := adaptGateway(t, `{"mask":{"max_chars":0},"servers":[`+server.line("a")+`,`+server.line("b")+`]}`)
	if got := servesUser(t, h, "", listening(t, "/mcp/a")).Body.String(); got != stream {
		t.Errorf("an anonymous client got %q", got)
	}
	ids := regexp.MustCompile(`(?m)^(\x{FEFF}?id: ?)(5/\x{e9}\.x|6|8|9)\.([\w-]{22})`)
	bound := servesUser(t, h, "ann", listening(t, "/mcp/a")).Body.String()
	if got := strings.ReplaceAll(ids.ReplaceAllString(strings.ReplaceAll(bound, "\r", "\n"), "$1$2"), "\n",
		""); got != strings.NewReplacer("\r", "", "\n", "").Replace(stream) {
		t.Errorf("ann got %q", bound)
	}
	if n := len(ids.FindAllString(strings.ReplaceAll(bound, "\r", "\n"), -1)); n != 3 {
		t.Errorf("%d ids are bound in %q", n, bound)
	}
	if got := servesUser(t, h, "ann", listening(t, "/mcp/a", "X-Mark", "yes")).Body.String(); !ids.MatchString(got) ||
		!strings.HasPrefix(got, "\ufeffid: 9.") {
		t.Errorf("after a byte order mark: %q", got)
	}
	servesUser(t, h, "ann", posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Accept-Encoding", "zstd"))
	if saw := server.saw(); saw[len(saw)-1].header.Get("Accept-Encoding") == "zstd" {
		t.Error("a server may compress events, and their ids would not be bound")
	}
	anns := strings.TrimPrefix(ids.FindString(bound), "id: ")
	for _, tt := range []struct {
		name, user, path, last string
		want                   string // received by the server
		status                 int
	}{
		{"its own", "ann", "/mcp/a", anns, "5/\u00e9.x", 200},
		{"none", "ann", "/mcp/a", "", "", 200},
		{"of an anonymous client", "", "/mcp/a", "5", "5", 200},
		{"of another client", "bob", "/mcp/a", anns, "", 400},
		{"as the server knows it", "ann", "/mcp/a", "5/\u00e9.x", "", 400},
		{"as the server knows it, by another client", "bob", "/mcp/a", "0", "", 400},
		{"of another server", "ann", "/mcp/b", anns, "", 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(server.saw())
			w := servesUser(t, h, tt.user, listening(t, tt.path, "Last-Event-Id", tt.last))
			if w.Code != tt.status {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			for _, got := range server.saw()[before:] {
				if last := got.header.Get("Last-Event-Id"); last != tt.want || tt.status != 200 {
					t.Errorf("the server got %q", last)
				}
			}
		})
	}
}
