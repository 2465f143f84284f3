package integration

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// inUse returns how much memory the Caddy of the test has in use, in MiB, when what nobody
// needs has been given back.
func inUse(t *testing.T) int {
	t.Helper()
	const profile = "/debug/pprof/heap?gc=1&debug=1"
	admin(t, "GET", profile, "") // pools keep things until the second time
	found := regexp.MustCompile(`# HeapAlloc = (\d+)`).FindStringSubmatch(admin(t, "GET", profile, "").body)
	if found == nil {
		t.Fatal("the profile does not tell")
	}
	n, _ := strconv.Atoi(found[1])
	return n >> 20
}

// muchMemory is how many MiB no client and no server may have the gateway keep.
const muchMemory = 64

// However much a client sends, and under however many names, little of it is kept.
func TestSecurityMemoryOfClients(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	at := joinedAt(serve(t, gateway("separator __", strangers(), "server far http://"+upstream(t, remote)+"/mcp")))
	pad := strings.Repeat("A", 9_900_000)
	thief := newSpeaker(t, at, false, canAll, bearer(thiefToken))
	for _, tt := range []struct {
		name  string
		times int
		send  func(i int) said
	}{
		{"what it says of itself", 30, func(i int) said {
			c := newSpeaker(t, at, true, fmt.Sprintf(`{"experimental":{"%d":{"pad":"%s"}}}`, i, pad), bearer(thiefToken))
			return c.ask(t, "tools/list", `{}`)
		}},
		{"requests under ever other names", 10, func(i int) said {
			c := newSpeaker(t, at, true, fmt.Sprintf(`{"experimental":{"%d":{}}}`, i), bearer(thiefToken))
			return c.ask(t, "tools/call", callOf("far", "echo", `{"pad":"`+pad+`"}`))
		}},
		{"subscriptions", 15, func(i int) said {
			return thief.ask(t, "resources/subscribe", `{"uri":`+quote(proxied("far", fmt.Sprint(pad[:7_000_000], i)))+`}`)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := inUse(t)
			for i := range tt.times {
				tt.send(i)
			}
			keepsLittle(t, before+muchMemory)
			victim := newSpeaker(t, at, true, canAll, bearer(victimToken))
			if got := victim.use(t, "far", "echo", `{"text":"mine"}`); !strings.Contains(got, "mine") {
				t.Errorf("another client got %s", got)
			}
		})
	}
}

// A server whose lists are never the same fills its own share of memory with them, and of
// what it says of itself. That of another client, and other servers, are of no concern to it.
func TestSecurityMemoryOfServers(t *testing.T) {
	isolate(t)
	var last atomic.Int64
	hostile := newLenientServer(t)
	hostile.Legacy = true
	hostile.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
		format, text := "", ""
		switch r.Method {
		case "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", last.Load()))
			format, text = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":"x","version":"1"},"instructions":"%d %s"}`, strings.Repeat("i", 15<<20)
		case "tools/list":
			format, text = `{"tools":[{"name":"x","inputSchema":{"type":"object"},"description":"%d %s"}]}`, strings.Repeat("t", 10<<20)
		case "prompts/list":
			format, text = `{"prompts":[{"name":"x","description":"%d %s"}]}`, strings.Repeat("p", 10<<20)
		case "resources/list":
			format, text = `{"resources":[{"uri":"x://x","name":"%d %s"}]}`, strings.Repeat("r", 20<<20) // which is too much
		default:
			return false
		}
		r.Answer(w, `"result":`+fmt.Sprintf(format, last.Add(1), text))
		return true
	}
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	at := joinedAt(serve(t, gateway("separator __", hostile.line("hostile"), "server far http://"+upstream(t, remote)+"/mcp")))
	before := inUse(t)
	for range 10 {
		c := newSpeaker(t, at, false, `{}`)
		for method, want := range map[string]string{"tools/list": "far__echo", "prompts/list": "far__p", "resources/list": "proxy://resource/eyJzZXJ2ZXIiOiJmYXIi"} {
			if got := c.ask(t, method, `{}`); !strings.Contains(got.answer.Raw, want) {
				t.Errorf("%s: %.300s", method, got.answer.Raw)
			}
		}
	}
	keepsLittle(t, before+muchMemory+8) // which is how much a server may have of lists
}

// keepsLittle wants Caddy to have no more than so many MiB in use, once it has given back
// what it borrowed. What it keeps it keeps for longer than a test waits.
func keepsLittle(t *testing.T, most int) {
	t.Helper()
	has := 0
	defer func() {
		if t.Failed() {
			t.Logf("Caddy has %d MiB in use, and may have %d", has, most)
		}
	}()
	await.Until(t, "memory to be given back", func() bool {
		has = inUse(t)
		return has <= most
	})
}
