package integration

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// Eager servers are started with the configuration, and not again by a reload that does not change
// them.
func TestEagerServers(t *testing.T) {
	isolate(t)
	eager, lazy, added := newJournal(t), newJournal(t), newJournal(t)
	http1 := newJournal(t)
	address, far := freeAddress(t), freeAddress(t)
	lines := []string{"name eager", "separator __", "start eager",
		block(child("eager"), eager.env()), block(child("lazy"), lazy.env(), "start lazy"),
		block("server far http://"+far+"/mcp/near", "timeout 1m")}
	behind := site(far, gateway("name behind", block(child("near"), http1.env())))
	file := filepath.Join(t.TempDir(), "log")
	load(t, logTo(file)+site(address, gateway(lines...))+behind)
	await.Until(t, "the child is initialized",
		func() bool { return len(eager.entries(t, "notifications/initialized")) == 1 })
	await.Until(t, "the state of the child", func() bool { return stateOf(t, "eager").State == "healthy" })
	// The log line comes after the start is recorded, so a reload does not send requests to the server
	// again.
	await.Until(t, "the server over HTTP is up", func() bool {
		return slices.ContainsFunc(linesOfLog(t, file, "mcp_gateway"), func(l logLine) bool {
			return l.Message == "MCP server is up" && l.MCPServer == "far"
		})
	})
	pid := stateOf(t, "eager").pid(t)

	lines = append(lines, block(child("added"), added.env()))
	load(t, logTo(file)+site(address, gateway(lines...))+behind)
	await.Until(t, "the added child", func() bool { return len(added.entries(t, "notifications/initialized")) == 1 })
	if got := stateOf(t, "eager").pid(t); got != pid || len(eager.entries(t, "start")) != 1 {
		t.Errorf("the process was %d, is %d", pid, got)
	}
	if n := len(http1.entries(t, "tools/list")); n != 1 {
		t.Errorf("the server over HTTP received %d tools/list, want 1", n)
	}
	if n := len(lazy.entries(t, "start")); n != 0 {
		t.Errorf("a lazy child was started %d times", n)
	}
}

// An eager server that fails to start is retried until it starts.
func TestEagerServersThatStartLate(t *testing.T) {
	isolate(t)
	journal, flag := newJournal(t), filepath.Join(t.TempDir(), "flag")
	command := strings.TrimPrefix(child("moody"), "server moody stdio ")
	serve(t, gateway("start eager", block("server moody stdio sh -c `test -e "+flag+" && exec "+command+"`",
		journal.env())))
	await.Until(t, "the failure", func() bool {
		return strings.Contains(stateOf(t, "moody").LastError, "exited with status 1")
	})
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the start", func() bool { return len(journal.entries(t, "notifications/initialized")) == 1 })
}

// A child that never completes the handshake delays clients at most once. Clients of each era share
// one process.
func TestChildrenWithoutHandshake(t *testing.T) {
	isolate(t)
	hung := newJournal(t)
	url := serve(t, gateway("separator __", "join_timeout 4s", block(child("hung", "--hang-init"), hung.env()),
		child("good")))
	for name, modern := range map[string]bool{"legacy": false, "modern": true} {
		c := newTestClient(t, joinedAt(url), modern, fullCapabilities)
		c.listenForChanges(t)
		for range 3 {
			if got := c.ask(t, "tools/list", ""); !strings.Contains(string(got.answer.Result), `"good__echo"`) {
				t.Errorf("the %s client got %s", name, got.answer.Raw)
			}
		}
	}
	if n := len(hung.entries(t, "start")); n > 2 { // one for each era: it is unknown whether the first supports the other
		t.Errorf("started %d processes, want at most 2", n)
	}
}

// A slow server is announced to clients when it is ready.
func TestSlowChildren(t *testing.T) {
	isolate(t)
	for name, modern := range map[string]bool{"legacy": false, "modern": true} {
		t.Run(name, func(t *testing.T) {
			slow, flag := newJournal(t), filepath.Join(t.TempDir(), "flag")
			command := strings.TrimPrefix(child("slow"), "server slow stdio ")
			url := serve(t, gateway("name "+name, "separator __", child("good"),
				block("server slow stdio sh -c `until test -e "+flag+"; do sleep 0.1; done; exec "+command+"`", slow.env())))
			c := newTestClient(t, joinedAt(url), modern, fullCapabilities)
			stream := c.listenForChanges(t)
			first := c.ask(t, "tools/list", "")
			if got := string(first.answer.Result); !strings.Contains(got, `"good__echo"`) {
				t.Errorf("got %s", got)
			}
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			stream.awaitMessage(t, "notifications/tools/list_changed")
			if got := c.ask(t, "tools/list", ""); !strings.Contains(string(got.answer.Result), `"slow__echo"`) {
				t.Errorf("got %s", got.answer.Raw)
			}
			if n := len(slow.entries(t, "start")); n != 1 {
				t.Errorf("started %d processes, want 1", n)
			}
		})
	}
}

// A client that disconnects from a stream causes no warning. A server that aborts a response does.
func TestClientDisconnectsAreNotWarnings(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "log")
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("data: {\n\n"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer broken.Close()
	address, other := freeAddress(t), freeAddress(t)
	load(t, block("", block("log", "output file "+file))+"\n"+site(address, gateway("separator __", child("a"),
		child("b")))+
		site(other, gateway("name other", "server broken "+broken.URL+"/")))
	logged := func(text string) bool {
		all, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(all), text)
	}
	c := newTestClient(t, joinedAt("http://"+address), false, fullCapabilities)
	await.Until(t, "the streams of a client and the children end", func() bool {
		stream := c.listenForChanges(t)
		c.use(t, "a", "echo", `{}`)
		c.use(t, "b", "echo", `{}`)
		stream.Cancel() // the gateway may not have subscribed to the children yet
		left := map[string]bool{}
		for name, value := range metrics(t) {
			if strings.HasPrefix(name, "requests_total") && strings.Contains(name, `outcome="canceled"`) && value > 0 {
				_, server, _ := strings.Cut(name, `server="`)
				server, _, _ = strings.Cut(server, `"`)
				left[server] = true
			}
		}
		return left[""] && left["a"] && left["b"]
	})
	if logged("aborting with incomplete response") {
		text, _ := os.ReadFile(file)
		t.Errorf("a disconnect of a client is logged as a warning: %s", text)
	}
	// The aggregate returns the failure in a response.
	newTestClient(t, joinedAt("http://"+other), false, fullCapabilities).ask(t, "tools/list", "")
	await.Until(t, "the warning", func() bool { return logged("aborting with incomplete response") })
}
