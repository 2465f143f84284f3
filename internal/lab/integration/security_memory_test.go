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

// memoryInUse returns the memory in use by the Caddy of the test, in MiB, after garbage collection.
func memoryInUse(t *testing.T) int {
	t.Helper()
	const profile = "/debug/pprof/heap?gc=1&debug=1"
	admin(t, "GET", profile, "") // sync.Pool releases memory at the second collection
	found := regexp.MustCompile(`# HeapAlloc = (\d+)`).FindStringSubmatch(admin(t, "GET", profile, "").body)
	if found == nil {
		t.Fatal("the profile has no HeapAlloc")
	}
	n, _ := strconv.Atoi(found[1])
	return n >> 20
}

// memoryLimit limits the memory, in MiB, that one client or server may make the gateway keep.
const memoryLimit = 64

// However much a client sends, and with however many different capabilities, the gateway keeps
// little of it.
func TestSecurityMemoryOfClients(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), "server far http://"+upstream(t, remote)+"/mcp")))
	pad := strings.Repeat("A", 9_900_000)
	thief := newTestClient(t, endpoint, false, fullCapabilities, bearer(thiefToken))
	for _, tt := range []struct {
		name  string
		times int
		send  func(i int) reply
	}{
		{"large capabilities", 30, func(i int) reply {
			c := newTestClient(t, endpoint, true, fmt.Sprintf(`{"experimental":{"%d":{"pad":"%s"}}}`, i, pad),
				bearer(thiefToken))
			return c.ask(t, "tools/list", `{}`)
		}},
		{"large requests with changing capabilities", 10, func(i int) reply {
			c := newTestClient(t, endpoint, true, fmt.Sprintf(`{"experimental":{"%d":{}}}`, i), bearer(thiefToken))
			return c.ask(t, "tools/call", callOf("far", "echo", `{"pad":"`+pad+`"}`))
		}},
		{"subscriptions", 15, func(i int) reply {
			return thief.ask(t, "resources/subscribe", `{"uri":`+quote(proxiedURI("far", fmt.Sprint(pad[:7_000_000], i)))+`}`)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := memoryInUse(t)
			for i := range tt.times {
				tt.send(i)
			}
			expectMemoryBelow(t, before+memoryLimit)
			victim := newTestClient(t, endpoint, true, fullCapabilities, bearer(victimToken))
			if got := victim.use(t, "far", "echo", `{"text":"mine"}`); !strings.Contains(got, "mine") {
				t.Errorf("another client got %s", got)
			}
		})
	}
}

// A server with ever-changing lists and descriptions fills only its own share of memory. Other
// servers and clients are not affected.
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
			format, text = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}},`+
				`"serverInfo":{"name":"x","version":"1"},"instructions":"%d %s"}`, strings.Repeat("i", 15<<20)
		case "tools/list":
			format, text = `{"tools":[{"name":"x","inputSchema":{"type":"object"},"description":"%d %s"}]}`,
				strings.Repeat("t", 10<<20)
		case "prompts/list":
			format, text = `{"prompts":[{"name":"x","description":"%d %s"}]}`, strings.Repeat("p", 10<<20)
		case "resources/list":
			format, text = `{"resources":[{"uri":"x://x","name":"%d %s"}]}`, strings.Repeat("r", 20<<20) // over the limit
		default:
			return false
		}
		r.Answer(w, `"result":`+fmt.Sprintf(format, last.Add(1), text))
		return true
	}
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", hostile.line("hostile"), "server far http://"+
		upstream(t, remote)+"/mcp")))
	before := memoryInUse(t)
	for range 10 {
		c := newTestClient(t, endpoint, false, `{}`)
		for method, want := range map[string]string{"tools/list": "far__echo", "prompts/list": "far__p",
			"resources/list": "proxy://resource/eyJzZXJ2ZXIiOiJmYXIi"} {
			if got := c.ask(t, method, `{}`); !strings.Contains(got.answer.Raw, want) {
				t.Errorf("%s: %.300s", method, got.answer.Raw)
			}
		}
	}
	expectMemoryBelow(t, before+memoryLimit+8) // the limit for a server's lists
}

// expectMemoryBelow waits until Caddy has at most this many MiB in use. Memory that Caddy retains,
// it retains for longer than the test waits.
func expectMemoryBelow(t *testing.T, most int) {
	t.Helper()
	used := 0
	defer func() {
		if t.Failed() {
			t.Logf("Caddy has %d MiB in use, want at most %d", used, most)
		}
	}()
	await.Until(t, "memory to be given back", func() bool {
		used = memoryInUse(t)
		return used <= most
	})
}
