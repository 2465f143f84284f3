package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A calledLine is what the audit log says of a call.
type calledLine struct {
	TS        float64
	Level     string
	Message   string `json:"msg"`
	Client    string
	Address   string `json:"client_ip"`
	Server    string `json:"mcp_server"`
	Method    string `json:"mcp_method"`
	Tool      string `json:"mcp_tool"`
	Prompt    string `json:"mcp_prompt"`
	Resource  string `json:"mcp_resource"`
	ID        string `json:"request_id"`
	Outcome   string
	Code      int `json:"mcp_error_code"`
	Duration  float64
	Arguments json.RawMessage
}

// auditIn are options by which Caddy has the audit log in a file of its own.
func auditIn(file string) string {
	return block("", block("log audit", "include http.handlers.mcp_gateway.audit", "output file "+file)) + "\n"
}

// auditLines returns the lines of an audit log, which must be in the order of their times.
func auditLines(t *testing.T, file string) []calledLine {
	t.Helper()
	lines := logLines(t, file)
	for i := 1; i < len(lines); i++ {
		if lines[i].TS < lines[i-1].TS {
			t.Errorf("line %d: %f after %f", i, lines[i].TS, lines[i-1].TS)
		}
	}
	return lines
}

// logLines returns the lines of a log.
func logLines(t *testing.T, file string) (lines []calledLine) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the next may be half written
	for raw := range bytes.Lines(text) {
		var line calledLine
		if err := json.Unmarshal(raw, &line); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		lines = append(lines, line)
	}
	return lines
}

// awaitLines waits until an audit log has so many lines, and returns them.
func awaitLines(t *testing.T, file string, n int) []calledLine {
	t.Helper()
	await.Until(t, fmt.Sprintf("%d lines in the audit log", n), func() bool { return len(auditLines(t, file)) >= n })
	return auditLines(t, file)
}

// Each call is one line, at all ways in.
func TestAuditCalls(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "audit.log")
	both, legacy := newLenientServer(t, "echo", "fail", "denied"), newRemoteServer(t, "echo")
	both.Resources = []string{"file:///a"}
	both.Replies = map[string]string{"fail": `"error":{"code":-32099,"message":"no"}`}
	address := freeAddress(t)
	rules := restricted("deny both::denied", `redact sk-\w+`, "redact_fields password")
	load(t, auditIn(file)+site(address, gateway(append(rules,
		"audit arguments", "discovery on", both.line("both"), legacy.line("old"))...)))
	url, eve := "http://"+address, bearer(eveToken)

	type target struct{ server, tool, prompt, resource string }
	echo, denied := target{server: "both", tool: "echo"}, target{server: "both", tool: "denied"}
	greet, resource := target{server: "both", prompt: "greet"}, target{server: "both", resource: "file:///a"}
	const arguments = `{"x":1,"key":"a sk-secret","in":{"password":"secret","text":"{\"password\":\"secret\"}"}}`
	// The admin API sorts them.
	const sorted = `{"in":{"password":"[redacted]","text":"{\"password\":\"[redacted]\"}"},"key":"a [redacted]","x":1}`
	const redacted = `{"x":1,"key":"a [redacted]","in":{"password":"[redacted]","text":"{\"password\":\"[redacted]\"}"}}`
	call := func(name string) string { return `{"name":"` + name + `","arguments":` + arguments + `}` }
	type way struct {
		name      string
		do        func(t *testing.T)
		client    string
		want      target
		outcome   string // "" for a denial
		arguments string
	}
	var ways []way
	for _, era := range clientEras {
		c := newSpeaker(t, joinedAt(url), era.modern, canAll, eve)
		ask := func(method, params string) func(*testing.T) {
			return func(t *testing.T) { c.ask(t, method, params) }
		}
		for _, w := range []way{
			{"a tool", ask("tools/call", call("both__echo")), "eve", echo, "ok", redacted},
			{"a tool of a legacy server", ask("tools/call", call("old__echo")), "eve",
				target{server: "old", tool: "echo"}, "ok", redacted},
			{"a tool that fails", ask("tools/call", call("both__fail")), "eve",
				target{server: "both", tool: "fail"}, "error", redacted},
			{"a denied tool", ask("tools/call", call("both__denied")), "eve", denied, "", ""},
			{"an unknown tool", ask("tools/call", call("none__x")), "eve",
				target{tool: "none__x"}, "invalid_params", redacted},
			{"a prompt", ask("prompts/get", call("both__greet")), "eve", greet, "ok", redacted},
			{"a resource", ask("resources/read", `{"uri":`+quote(proxied("both", "file:///a"))+`}`), "eve",
				resource, "ok", ""},
			{"a tool of the gateway", ask("tools/call", `{"name":"search_tools","arguments":{"query":"a sk-secret"}}`), "eve",
				target{tool: "search_tools"}, "ok", `{"query":"a [redacted]"}`},
			{"a tool by call_tool", ask("tools/call", `{"name":"call_tool","arguments":`+call("both__echo")+`}`), "eve",
				echo, "ok", redacted},
			{"a denied tool by call_tool", ask("tools/call", `{"name":"call_tool","arguments":`+call("both__denied")+`}`),
				"eve", denied, "", ""},
		} {
			w.name += ", " + era.name
			ways = append(ways, w)
		}
	}
	for _, at := range []string{mcpAt(url, "both"), rpcAt(url, "both")} {
		to := func(method, params, token string) func(*testing.T) {
			return func(t *testing.T) { post(t, at, rpc(method, params), acceptBoth, bearer(token)) }
		}
		ways = append(ways,
			way{"a tool at " + at, to("tools/call", call("echo"), eveToken), "eve", echo, "ok", redacted},
			way{"a denied tool at " + at, to("tools/call", call("denied"), eveToken), "eve", denied, "", ""},
			way{"a client without rules at " + at, to("tools/call", call("echo"), zoeToken), "zoe", echo, "ok", arguments},
			way{"a prompt at " + at, to("prompts/get", call("greet"), eveToken), "eve", greet, "ok", redacted},
			way{"a resource at " + at, to("resources/read", `{"uri":"file:///a"}`, eveToken), "eve", resource, "ok", ""})
	}
	ways = append(ways, way{"the admin API", func(t *testing.T) {
		control[struct{}](t, "POST", "/call", `{"tool":"both__echo","arguments":`+arguments+`,"client":"eve"}`, 200)
	}, "operator", echo, "ok", sorted})

	for i, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			w.do(t)
			lines := awaitLines(t, file, i+1)
			if len(lines) != i+1 {
				t.Fatalf("got %d lines, want one more: %+v", len(lines)-i, lines[i:])
			}
			line := lines[i]
			got := target{line.Server, line.Tool, line.Prompt, line.Resource}
			if got != w.want || line.Client != w.client || line.Address != "127.0.0.1" || line.Outcome != w.outcome {
				t.Errorf("got %+v", line)
			}
			if w.outcome == "" {
				if line.Message != "access denied" || line.Level != "warn" {
					t.Errorf("got %+v", line)
				}
				return
			}
			if got := string(line.Arguments); got != w.arguments {
				t.Errorf("got arguments %s", got)
			}
			if line.Message != "call" || line.Level != "info" || line.ID == "" || line.Duration <= 0 ||
				(line.Code == 0) != (w.outcome == "ok") {
				t.Errorf("got %+v", line)
			}
		})
	}
	if text, _ := os.ReadFile(file); bytes.Count(text, []byte("sk-secret")) != 2 { // of zoe
		t.Error("a secret is in the log")
	}
}

// Calls by `caddy mcp-stdio` are those of the operator. It logs to standard error.
func TestAuditStdio(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	config := inFile(t, site(freeAddress(t), gateway("audit all", "separator __", server.line("both"))))
	cmd := caddy(t, "mcp-stdio", "--config", config)
	cmd.Stdin = strings.NewReader(stdioGreeting + rpc("tools/call", `{"name":"both__echo","arguments":{"x":1}}`) + "\n")
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(logLines(t, log.Name()), func(line calledLine) bool { return line.Message != "call" })
	if len(lines) != 1 || lines[0].Client != "operator" || lines[0].Tool != "echo" || lines[0].Outcome != "ok" ||
		lines[0].Arguments != nil {
		t.Errorf("got %+v", lines)
	}
}

// callsOf makes calls by many clients at the same time, at each way in. It returns the ids of the calls, how
// many had no answer because Caddy has closed their connection, and how long they took.
func callsOf(
	t *testing.T, url string, clients, each int, called func(),
) (ids []string, lost int64, took time.Duration) {
	t.Helper()
	by := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: 2 * patience}
	t.Cleanup(by.CloseIdleConnections)
	session := greet(t, joinedAt(url))
	var all sync.WaitGroup
	var unanswered atomic.Int64
	began := time.Now()
	for c := range clients {
		at, tool := joinedAt(url), "both__echo"
		if c%3 > 0 {
			at, tool = []string{mcpAt(url, "both"), rpcAt(url, "both")}[c%3-1], "echo"
		}
		for i := range each {
			ids = append(ids, fmt.Sprintf("%d-%d", c, i))
		}
		mine := ids[len(ids)-each:]
		all.Go(func() {
			for _, id := range mine {
				message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call",`+
					`"params":{"name":%q,"arguments":{"call":%q}}}`, id, tool, id)
				status, body, err := posted(by, request(t, t.Context(), "POST", at, message, acceptBoth, session))
				switch {
				case err != nil:
					unanswered.Add(1)
				case status != 200:
					t.Errorf("%s: %d %.300s", id, status, body)
				}
				called()
			}
		})
	}
	all.Wait()
	return ids, unanswered.Load(), time.Since(began)
}

// idsOf returns the ids of calls in the log, in order.
func idsOf(lines []calledLine) (ids []string) {
	for _, line := range lines {
		ids = append(ids, line.ID)
	}
	slices.Sort(ids)
	return ids
}

// Under load, no line is missing, and all are in order.
func TestAuditUnderLoad(t *testing.T) {
	isolate(t)
	const clients, each = 50, 100
	file := filepath.Join(t.TempDir(), "audit.log")
	address := freeAddress(t)
	load(t, auditIn(file)+site(address, gateway("audit all", "separator __", newLenientServer(t, "echo").line("both"))))
	ids, lost, took := callsOf(t, "http://"+address, clients, each, func() {})
	t.Logf("%.0f calls/s", clients*each/took.Seconds())
	slices.Sort(ids)
	if got := idsOf(awaitLines(t, file, len(ids))); !slices.Equal(got, ids) || lost > 0 {
		t.Errorf("%d calls, %d lines, %d lost", len(ids), len(got), lost)
	}
}

// newSlowServer starts a server whose tool slow says when it is called, and waits.
func newSlowServer(t *testing.T) (_ *remoteServer, entered, leave chan struct{}) {
	t.Helper()
	server := newLenientServer(t, "echo", "slow")
	entered, leave = make(chan struct{}), make(chan struct{})
	server.Handle = func(_ http.ResponseWriter, r *mcptest.Received) bool {
		if r.Tool() == "slow" {
			close(entered)
			<-leave
		}
		return false
	}
	return server, entered, leave
}

// While the log moves to another file at each reload, each call is one line in one of them. A call that began before a
// reload is in the file of the configuration that it ends under.
func TestAuditReload(t *testing.T) {
	isolate(t)
	dir := t.TempDir()
	server, entered, leave := newSlowServer(t)
	address := freeAddress(t)
	url := "http://" + address
	files := []string{filepath.Join(dir, "0.log"), filepath.Join(dir, "1.log"), filepath.Join(dir, "2.log")}
	configure := func(file string) {
		load(t, auditIn(file)+site(address, gateway("audit all", "separator __", server.line("both"))))
	}
	configure(files[0])
	slow := newSpeaker(t, joinedAt(url), true, canAll).begin(t, "tools/call", callOf("both", "slow", "{}"))
	<-entered

	called := make(chan struct{}, 5_000)
	var sent []string
	var lost int64
	all := make(chan struct{})
	go func() {
		defer close(all)
		sent, lost, _ = callsOf(t, url, 20, cap(called)/20, func() { called <- struct{}{} })
	}()
	for _, file := range files[1:] {
		for range 1_000 {
			<-called
		}
		configure(file)
	}
	close(leave)
	slow.finish(t)
	<-all
	var ran []string // by the server, and so also by the gateway
	for _, call := range server.Received("tools/call") {
		if call.Tool() == "echo" {
			ran = append(ran, argumentsOf(call).Call)
		}
	}
	slices.Sort(ran)
	var logged []calledLine
	await.Until(t, "all lines", func() bool {
		logged = nil
		for _, file := range files {
			logged = append(logged, auditLines(t, file)...)
		}
		return len(logged) > len(ran)
	})
	if last := auditLines(t, files[len(files)-1]); !slices.ContainsFunc(last, isSlow) {
		t.Error("the call that began before the reloads is not in the last file")
	}
	for _, file := range files {
		t.Logf("%s: %d lines", filepath.Base(file), len(auditLines(t, file)))
	}
	t.Logf("%d calls, %d of them lost with their connections", len(sent), lost)
	if got := idsOf(slices.DeleteFunc(logged, isSlow)); !slices.Equal(got, ran) {
		t.Errorf("%d calls were run, %d lines", len(ran), len(got))
	}
}

func isSlow(line calledLine) bool { return line.Tool == "slow" }

// A call that ends after its gateway was removed is in the log that the gateway had.
func TestAuditAfterRemoval(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "audit.log")
	server, entered, leave := newSlowServer(t)
	address := freeAddress(t)
	load(t, auditIn(file)+site(address, gateway("audit all", "separator __", server.line("both"))))
	slow := newSpeaker(t, joinedAt("http://"+address), true, canAll).begin(t, "tools/call", callOf("both", "slow", "{}"))
	<-entered
	load(t, site(freeAddress(t), "respond plain"))
	close(leave)
	slow.finish(t)
	if lines := awaitLines(t, file, 1); len(lines) != 1 || !isSlow(lines[0]) || lines[0].Outcome != "ok" {
		t.Errorf("got %+v", lines)
	}
}
