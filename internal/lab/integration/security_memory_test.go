package integration

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

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
			if grown := inUse(t) - before; grown > muchMemory {
				t.Errorf("Caddy keeps %d MiB", grown)
			}
			victim := newSpeaker(t, at, true, canAll, bearer(victimToken))
			if got := victim.use(t, "far", "echo", `{"text":"mine"}`); !strings.Contains(got, "mine") {
				t.Errorf("another client got %s", got)
			}
		})
	}
}
