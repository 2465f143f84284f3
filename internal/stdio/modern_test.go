package stdio

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

const modernWords = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientCapabilities":{}}`

// modernly returns a request of the modern era and its headers. The members are
// those of its params besides _meta.
func modernly(id, method, members, name string) (body string, headers []string) {
	if members != "" {
		members += ","
	}
	headers = []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	if name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return request(id, method, "{"+members+modernWords+"}"), headers
}

func (c *client) modern(id, method, members, name string) *reply {
	c.p.t.Helper()
	body, headers := modernly(id, method, members, name)
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
		{"discover says what it is", "server/discover", ``, "", 200, `"supportedVersions":["2026-07-28"`},
		{"initialize is unknown", "initialize", ``, "", 404, `"code":-32601`},
		{"ping is unknown", "ping", ``, "", 404, `"code":-32601`},
		{"what is invalid is a bad request", "resources/read", `"uri":"x:y"`, "x:y", 400, `"code":-32602`},
		{"a question is a result", "tools/call", `"name":"ask-roots"`, "ask-roots", 200, `"resultType":"input_required"`},
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
	t.Run("a version of the future is refused by the server", func(t *testing.T) {
		body, headers := modernly(`1`, "tools/list", "", "")
		headers[1] = "2099-01-01"
		r := p.client().post(strings.ReplaceAll(body, "2026-07-28", "2099-01-01"), headers...)
		equal(t, "status", r.StatusCode, http.StatusBadRequest)
		contains(t, "body", r.whole(), `"code":-32022`)
	})
	t.Run("arguments are repeated in headers", func(t *testing.T) {
		body, headers := modernly(`1`, "tools/call", `"name":"echo","arguments":{"region":"eu"}`, "echo")
		equal(t, "without", p.client().post(body, headers...).StatusCode, http.StatusBadRequest)
		equal(t, "with", p.client().post(body, append(headers, "Mcp-Param-Region", "eu")...).StatusCode, http.StatusOK)
		equal(
			t,
			"with another",
			p.client().post(body, append(headers, "Mcp-Param-Region", "us")...).StatusCode,
			http.StatusBadRequest,
		)
		lists := len(p.received("tools/list"))
		equal(t, "with again", p.client().post(body, append(headers, "Mcp-Param-Region", "eu")...).StatusCode, http.StatusOK)
		equal(t, "lists of tools", len(p.received("tools/list")), lists) // it is known by now
	})
	t.Run("a notification may say nothing of itself", func(t *testing.T) {
		r := p.client().post(notification("notifications/cancelled", `{"requestId":1}`), "MCP-Protocol-Version", "2026-07-28")
		equal(t, "status", r.StatusCode, http.StatusAccepted)
	})
	t.Run("a session does not matter", func(t *testing.T) {
		body, headers := modernly(`1`, "tools/list", "", "")
		equal(t, "status", p.client().post(body, append(headers, "Mcp-Session-Id", "x")...).StatusCode, http.StatusOK)
	})
	equal(t, "initialized, but for the client above", len(p.received("initialize")), 1)
}

func TestBothErasHaveAChildEach(t *testing.T) {
	p := newPool(t, "--modern")
	legacy := p.client().initialize(`{}`)
	pids := map[int]bool{legacy.pid(): true, modernPID(p): true}
	equal(t, "processes", len(pids), 2)
	equal(t, "legacy again", pids[legacy.pid()], true)
	equal(t, "modern again", pids[modernPID(p)], true)
	equal(t, "initialized", len(p.received("initialize")), 1)
}

func TestALegacyServerServesModernClients(t *testing.T) {
	p := newPool(t, "")
	r := p.client().modernCall("echo", `{"x":1.0}`)
	equal(t, "status", r.StatusCode, http.StatusOK)
	contains(t, "echo", r.text(), `{"x":1.0}`)
	equal(t, "the same child", p.client().pid(), modernPID(p))
	equal(t, "discover", p.client().modern(`1`, "server/discover", "", "").StatusCode, http.StatusNotFound)
	equal(t, "asked once what it is", len(p.received("server/discover")), 2) // and by the client
}

// It does not answer what it does not know. The same process is initialized.
func TestAServerThatSaysNothingBeforeTheHandshakeIsLegacy(t *testing.T) {
	script := `while read -r l; do case "$l" in ` +
		`*'"initialize"'*) printf '%s\n' '{"id":2,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}';; ` +
		`*'"id":3'*) printf '%s\n' '{"id":3,"result":"served"}';; esac; done`
	p := newPoolOf(t, []string{"sh", "-c", script}, func(*Config) {})
	p.discoverTime = 10 * time.Millisecond
	contains(t, "answer", p.client().modern(`"q"`, "x/y", "", "").whole(), `{"id":"q","result":"served"}`)
	equal(t, "started", len(p.started), 1)
}

// A server that does not know the modern era is not started twice to find that out.
func TestALegacyServerIsStartedOnceForModernClients(t *testing.T) {
	for name, flags := range map[string]string{"it answers at once": "", "it takes its time": "--init-delay 0.05"} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, flags)
			p.discoverTime = 10 * time.Millisecond
			pid := modernPID(p)
			equal(t, "the same child for clients that declare nothing", p.client().pid(), pid)
			equal(t, "the same child in a session", p.client().initialize(`{}`).pid(), pid)
			equal(t, "started", p.events("start"), 1)
			equal(t, "initialized", len(p.received("notifications/initialized")), 1)
			p.until("reported once", func() bool { return len(p.started) == 1 })
			equal(t, "of the legacy era", p.Status("alpha:1")[0].Era, "legacy")
		})
	}
	t.Run("what its first client declares decides which clients share it", func(t *testing.T) {
		p := newPool(t, "")
		body, headers := modernly(`1`, "tools/call", `"name":"pid"`, "pid")
		sampling := strings.Replace(body, `clientCapabilities":{}`, `clientCapabilities":{"sampling":{}}`, 1)
		pid := p.client().post(sampling, headers...).text()
		equal(t, "again", p.client().post(sampling, headers...).text(), pid)
		contains(t, "told", p.received("initialize")[0], `"capabilities":{"sampling":{}}`)
		if other := p.client().post(body, headers...).text(); other == pid {
			t.Error("a client that declares nothing has the same")
		}
	})
}

// TestAChildThatEndsBeforeItIsGreeted: the process has ended, and the reader of its
// stdout has not noticed yet.
func TestAChildThatEndsBeforeItIsGreeted(t *testing.T) {
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
		err = s.handshake(&child{process: ended, server: s, calls: map[uint64]*call{}}) // with no room in its queue
		ended.stdout.Close()
		ended.stderr.Close()
		if err == nil {
			t.Fatal("it has answered")
		}
		contains(t, "error", err.Error(), "exited with status 3 during ")
		equal(t, "its legacy child may know", errors.Is(err, errAskLegacy), tt.askLegacy)
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
		equal(t, "sessions", len(p.sessions), 0)
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
	equal(t, "first", tools.next(), ack(`"listen:0"`, `{"toolsListChanged":true}`))
	data := p.client().
		modern(`0`, "subscriptions/listen",
			`"notifications":{"resourceSubscriptions":["file://alpha/data.txt"]}`, "")
	equal(t, "first", data.next(), ack(`0`, `{"resourceSubscriptions":["file://alpha/data.txt"]}`))
	same := p.client().modern(`0`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`, "")
	equal(t, "first", same.next(), ack(`0`, `{"toolsListChanged":true}`))

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

	// A log message is that of the call, though others listen, or did.
	logs := func() {
		t.Helper()
		body, headers := modernly(`1`, "tools/call", `"name":"emit"`, "emit")
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
	p.eventually("the child has stopped them", func() bool { return p.events("cancelled") >= 3 })

	ctx, leave := context.WithCancel(t.Context())
	s := p.client().with(ctx).modern(`1`, "subscriptions/listen", `"notifications":{}`, "")
	s.next()
	leave()
	equal(t, "end", s.next(), "")
}

func TestRestartOfAModernChild(t *testing.T) {
	p := newPool(t, "--modern")
	p.soon("alpha:1", mcp.Modern)
	modernPID(p)
	listen := p.client().modern(`"l"`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`, "")
	listen.next()
	body, headers := modernly(`1`, "tools/call", `"name":"die"`, "die")
	if _, err := p.client().do(http.MethodPost, body, headers...); err == nil {
		t.Error("no error")
	}
	contains(t, "the stream's end", listen.next(), `"connect_error"`)
	equal(t, "end", listen.next(), "")
	p.until("it is back", func() bool { return p.again == 1 })
	modernPID(p)
}
