package stdio

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

const modernMetaMember = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientCapabilities":{}}`

// modernRequest returns a request of the modern era and its headers. Its params are members and
// _meta.
func modernRequest(id, method, members, name string) (body string, headers []string) {
	if members != "" {
		members += ","
	}
	headers = []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	if name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return request(id, method, "{"+members+modernMetaMember+"}"), headers
}

func (c *client) modern(id, method, members, name string) *reply {
	c.p.t.Helper()
	body, headers := modernRequest(id, method, members, name)
	return c.post(body, headers...)
}

func (c *client) modernCall(tool, arguments string) *reply {
	c.p.t.Helper()
	return c.modern(`1`, "tools/call", fmt.Sprintf(`"name":%q,"arguments":%s`, tool, arguments), tool)
}

func modernPID(p *testPool) int {
	p.t.Helper()
	pid, err := strconv.Atoi(p.client().modernCall("pid", `{}`).text())
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

func TestModernRequests(t *testing.T) {
	p := newPool(t, "--modern")
	tests := []struct {
		name   string
		method string
		more   string
		header string
		status int
		want   string
	}{
		{"a call is answered", "tools/call", `"name":"echo","arguments":{}`, "echo", 200, `"resultType":"complete"`},
		{"discover returns the versions", "server/discover", ``, "", 200, `"supportedVersions":["2026-07-28"`},
		{"initialize is unknown", "initialize", ``, "", 404, `"code":-32601`},
		{"ping is unknown", "ping", ``, "", 404, `"code":-32601`},
		{"invalid params are a bad request", "resources/read", `"uri":"x:y"`, "x:y", 400, `"code":-32602`},
		{"a server request", "tools/call", `"name":"ask-roots"`, "ask-roots", 200, `"resultType":"input_required"`},
		{"a wrong name is a bad request", "tools/call", `"name":"echo"`, "pid", 400, `"code":-32020`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := p.client().modern(`"q"`, tt.method, tt.more, tt.header)
			equal(t, "status", r.StatusCode, tt.status)
			equal(t, "session", r.Header.Get("Mcp-Session-Id"), "")
			body := r.whole()
			contains(t, "body", body, tt.want)
			contains(t, "body", body, `"id":"q"`)
		})
	}
	t.Run("the server refuses an unknown version", func(t *testing.T) {
		body, headers := modernRequest(`1`, "tools/list", "", "")
		headers[1] = "2099-01-01"
		r := p.client().post(strings.ReplaceAll(body, "2026-07-28", "2099-01-01"), headers...)
		equal(t, "status", r.StatusCode, http.StatusBadRequest)
		contains(t, "body", r.whole(), `"code":-32022`)
	})
	t.Run("arguments are repeated in headers", func(t *testing.T) {
		body, headers := modernRequest(`1`, "tools/call", `"name":"echo","arguments":{"region":"eu"}`, "echo")
		equal(t, "without header", p.client().post(body, headers...).StatusCode, http.StatusBadRequest)
		equal(t, "with header", p.client().post(body, append(headers, "Mcp-Param-Region", "eu")...).StatusCode, http.StatusOK)
		equal(
			t,
			"with another value",
			p.client().post(body, append(headers, "Mcp-Param-Region", "us")...).StatusCode,
			http.StatusBadRequest,
		)
		lists := len(p.received("tools/list"))
		equal(t, "again", p.client().post(body, append(headers, "Mcp-Param-Region", "eu")...).StatusCode, http.StatusOK)
		equal(t, "lists of tools", len(p.received("tools/list")), lists) // the list is cached
	})
	t.Run("a notification needs no headers of its method", func(t *testing.T) {
		r := p.client().post(notification("notifications/cancelled", `{"requestId":1}`), "MCP-Protocol-Version", "2026-07-28")
		equal(t, "status", r.StatusCode, http.StatusAccepted)
	})
	t.Run("a session id is ignored", func(t *testing.T) {
		body, headers := modernRequest(`1`, "tools/list", "", "")
		equal(t, "status", p.client().post(body, append(headers, "Mcp-Session-Id", "x")...).StatusCode, http.StatusOK)
	})
	equal(t, "initialized by the client of an earlier subtest only", len(p.received("initialize")), 1)
}

// In the modern era an empty cursor is like any other, and a repeated one ends the list.
func TestHeadersOfToolsAfterAnEmptyCursor(t *testing.T) { // A21
	const tool = `{"name":"echo","inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`
	script := `while read -r l; do id=${l#*'"id":'}; case "$l" in ` +
		`*server/discover*) r='{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}';; ` +
		`*'"cursor":""'*) r='{"tools":[` + tool + `],"nextCursor":""}';; ` +
		`*tools/list*) r='{"tools":[],"nextCursor":""}';; *) r='{}';; esac; ` +
		`printf '{"id":%s,"result":%s}\n' "${id%%,*}" "$r"; done`
	p := newPoolOf(t, []string{"sh", "-c", script})
	body, headers := modernRequest(`1`, "tools/call", `"name":"echo","arguments":{"region":"eu"}`, "echo")
	equal(t, "without header", p.client().post(body, headers...).StatusCode, http.StatusBadRequest)
	equal(t, "with header", p.client().post(body, append(headers, "Mcp-Param-Region", "eu")...).StatusCode, http.StatusOK)
}

func TestBothErasHaveAChildEach(t *testing.T) {
	p := newPool(t, "--modern")
	legacy := p.client().initialize(`{}`)
	pids := map[int]bool{legacy.pid(): true, modernPID(p): true}
	equal(t, "processes", len(pids), 2)
	equal(t, "legacy process is reused", pids[legacy.pid()], true)
	equal(t, "modern process is reused", pids[modernPID(p)], true)
	equal(t, "initialized", len(p.received("initialize")), 1)
}

func TestALegacyServerServesModernClients(t *testing.T) {
	p := newPool(t, "")
	r := p.client().modernCall("echo", `{"x":1.0}`)
	equal(t, "status", r.StatusCode, http.StatusOK)
	contains(t, "echo", r.text(), `{"x":1.0}`)
	equal(t, "the same child", p.client().pid(), modernPID(p))
	equal(t, "discover", p.client().modern(`1`, "server/discover", "", "").StatusCode, http.StatusNotFound)
	equal(t, "server/discover requests", len(p.received("server/discover")), 2) // of the gateway and of the client
}

// The server does not respond to unknown methods. The same process is initialized as a legacy
// server.
func TestSilentServersAreLegacy(t *testing.T) {
	script := `while read -r l; do case "$l" in ` +
		`*'"initialize"'*) printf '%s\n' '{"id":2,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}';; ` +
		`*'"id":3'*) printf '%s\n' '{"id":3,"result":"served"}';; esac; done`
	p := newPoolOf(t, []string{"sh", "-c", script}, func(*Config) {})
	p.discoverTime = 10 * time.Millisecond
	contains(t, "answer", p.client().modern(`"q"`, "x/y", "", "").whole(), `{"id":"q","result":"served"}`)
	equal(t, "started", len(p.started), 1)
}

// The gateway does not start a server of the legacy era twice to learn its era.
func TestALegacyServerIsStartedOnceForModernClients(t *testing.T) {
	for name, flags := range map[string]string{"fast": "", "slow": "--init-delay 0.05"} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, flags)
			p.discoverTime = 10 * time.Millisecond
			pid := modernPID(p)
			equal(t, "child of clients without capabilities", p.client().pid(), pid)
			equal(t, "child of a session", p.client().initialize(`{}`).pid(), pid)
			equal(t, "started", p.events("start"), 1)
			equal(t, "initialized", len(p.received("notifications/initialized")), 1)
			p.until("the start is reported", func() bool { return len(p.started) == 1 })
			equal(t, "era", p.Status("alpha:1")[0].Era, "legacy")
		})
	}
	t.Run("the capabilities of the first client", func(t *testing.T) {
		p := newPool(t, "")
		body, headers := modernRequest(`1`, "tools/call", `"name":"pid"`, "pid")
		sampling := strings.Replace(body, `clientCapabilities":{}`, `clientCapabilities":{"sampling":{}}`, 1)
		pid := p.client().post(sampling, headers...).text()
		equal(t, "same capabilities", p.client().post(sampling, headers...).text(), pid)
		contains(t, "initialize", p.received("initialize")[0], `"capabilities":{"sampling":{}}`)
		if other := p.client().post(body, headers...).text(); other == pid {
			t.Error("a client without capabilities has the same child")
		}
	})
}

// The process has ended, but the reader of its stdout has not noticed yet.
func TestChildEndsBeforeTheHandshake(t *testing.T) {
	for _, tt := range []struct {
		era       mcp.Era
		askLegacy bool
	}{{mcp.Legacy, false}, {mcp.Modern, true}} {
		ended, err := startProcess([]string{"sh", "-c", "exit 3"}, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		<-ended.exited
		s := newServer(
			NewPool(Config{StartTimeout: await.Patience}, nil),
			address{"alpha:1", tt.era, &group{groupKey: groupKey{"alpha", noCapabilities}}},
			nil,
		)
		c := newChild(s, ended)
		c.input.messages = nil // there is no room
		err = (&handshaker{server: s, child: c}).run()
		ended.stdout.Close()
		ended.stderr.Close()
		if err == nil {
			t.Fatal("got a response")
		}
		contains(t, "error", err.Error(), "exited with status 3 during ")
		equal(t, "legacy child is tried", errors.Is(err, errAskLegacy), tt.askLegacy)
	}
}

func TestALegacyClientOfAModernServer(t *testing.T) {
	for _, change := range []func(*Config){perSession, func(*Config) {}} {
		p := newPool(t, "--modern-only", change)
		r := p.client().post(request(`"i"`, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`))
		equal(t, "status", r.StatusCode, http.StatusOK)
		equal(t, "session", r.Header.Get("Mcp-Session-Id"), "")
		equal(
			t,
			"error",
			r.whole(),
			`{"jsonrpc":"2.0","id":"i","error":{"code":-32601,"message":"method not found: `+
				`initialize"}}`,
		)
		equal(t, "sessions", len(p.sessions.byID), 0)
		equal(t, "modern", p.client().modernCall("echo", `{}`).StatusCode, http.StatusOK)
	}
}

func TestListening(t *testing.T) {
	p := newPool(t, "--modern")
	ack := func(id, wants string) string {
		return notification(
			"notifications/subscriptions/acknowledged",
			`{"_meta":{"io.modelcontextprotocol/subscriptionId":`+id+`},"notifications":`+wants+`}`,
		)
	}
	tools := p.client().modern(`"listen:0"`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`, "")
	equal(t, "acknowledgment", tools.next(), ack(`"listen:0"`, `{"toolsListChanged":true}`))
	data := p.client().
		modern(`0`, "subscriptions/listen",
			`"notifications":{"resourceSubscriptions":["file://alpha/data.txt"]}`, "")
	equal(t, "acknowledgment", data.next(), ack(`0`, `{"resourceSubscriptions":["file://alpha/data.txt"]}`))
	same := p.client().modern(`0`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`, "")
	equal(t, "acknowledgment", same.next(), ack(`0`, `{"toolsListChanged":true}`))

	p.client().modernCall("touch", `{"uri":"file://alpha/data.txt"}`).text()
	equal(
		t,
		"data",
		data.next(),
		notification(
			"notifications/resources/updated",
			`{"uri":"file://alpha/data.txt","_meta":{"io.modelcontextprotocol/subscriptionId":0}}`,
		),
	)
	p.client().modernCall("add-tool", `{"name":"x"}`).text()
	equal(
		t,
		"tools",
		tools.next(),
		notification("notifications/tools/list_changed",
			`{"_meta":{"io.modelcontextprotocol/subscriptionId":"listen:0"}}`),
	)
	equal(
		t,
		"the same id",
		same.next(),
		notification("notifications/tools/list_changed",
			`{"_meta":{"io.modelcontextprotocol/subscriptionId":0}}`),
	)

	// A log message belongs to the call, whether or not listen requests are open.
	logs := func() {
		t.Helper()
		body, headers := modernRequest(`1`, "tools/call", `"name":"emit"`, "emit")
		r := p.client().
			post(strings.Replace(body, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":"info",`, 1),
				headers...)
		contains(t, "log message", r.next(), "notifications/message")
		contains(t, "answer", r.next(), "emitted")
		r.Body.Close()
	}
	logs()
	tools.Body.Close()
	data.Body.Close()
	same.Body.Close()
	logs()
	p.client().modernCall("echo", `{}`).text()
	p.eventually("the listen requests are canceled", func() bool { return p.events("cancelled") >= 3 })

	ctx, leave := context.WithCancel(t.Context())
	s := p.client().with(ctx).modern(`1`, "subscriptions/listen", `"notifications":{}`, "")
	s.next()
	leave()
	equal(t, "end", s.next(), "")
}

func TestRestartOfAModernChild(t *testing.T) {
	p := newPool(t, "--modern")
	p.restartSoon("alpha:1", mcp.Modern)
	modernPID(p)
	listen := p.client().modern(`"l"`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`, "")
	listen.next()
	body, headers := modernRequest(`1`, "tools/call", `"name":"die"`, "die")
	if _, err := p.client().do(http.MethodPost, body, headers...); err == nil {
		t.Error("no error")
	}
	contains(t, "error at the end of the stream", listen.next(), `"connect_error"`)
	equal(t, "end", listen.next(), "")
	p.until("the child has restarted", func() bool { return p.restarts == 1 })
	modernPID(p)
}

// Clients share a child that is still being started, although its era is not yet known and its
// first client has left.
func TestClientsJoinAChildThatIsBeingStarted(t *testing.T) {
	for _, tt := range []struct{ name, capabilities string }{
		{"without capabilities", `{}`},
		{"with capabilities", `{"sampling":{}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gate := filepath.Join(t.TempDir(), "gate")
			p := newPool(t, "", func(c *Config) {
				wait := `while [ ! -e "$0" ]; do sleep 0.01; done; exec "$@"`
				c.Command = append([]string{"sh", "-c", wait, gate}, c.Command...)
			})
			var running sync.WaitGroup
			running.Go(func() {
				if err := p.Start(t.Context(), "alpha:1"); err != nil {
					t.Error(err)
				}
			})
			p.until("the child is starting", func() bool { return p.logs.FilterMessage("starting MCP server").Len() == 1 })
			pids := make([]int, 2)
			for i := range pids {
				running.Go(func() { pids[i] = p.client().initialize(tt.capabilities).pid() })
			}
			first, err := p.server(address{host: "alpha:1", era: mcp.Modern})
			if err != nil {
				t.Fatal(err)
			}
			p.eventually("a client waits for the child", func() bool {
				first.mu.Lock()
				defer first.mu.Unlock()
				return first.waiting == 3
			})
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			running.Wait()
			equal(t, "child of the second client", pids[1], pids[0])
			equal(t, "starts", p.logs.FilterMessage("starting MCP server").Len(), 1)
		})
	}
}
