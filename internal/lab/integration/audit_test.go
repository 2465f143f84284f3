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

// A callLine is the audit log line of a call.
type callLine struct {
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

// auditTo returns global options that write the audit log to its own file.
func auditTo(file string) string {
	return block("", block("log audit", "include http.handlers.mcp_gateway.audit", "output file "+file)) + "\n"
}

// auditLines returns the lines of an audit log, which must be in order of time.
func auditLines(t *testing.T, file string) []callLine {
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
func logLines(t *testing.T, file string) (lines []callLine) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be incomplete
	for raw := range bytes.Lines(text) {
		var line callLine
		if err := json.Unmarshal(raw, &line); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		lines = append(lines, line)
	}
	return lines
}

// awaitLines waits until an audit log has n lines, and returns them.
func awaitLines(t *testing.T, file string, n int) []callLine {
	t.Helper()
	await.Until(t, fmt.Sprintf("%d lines in the audit log", n), func() bool { return len(auditLines(t, file)) >= n })
	return auditLines(t, file)
}

// Each call writes one line, at all endpoints.
func TestAuditCalls(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "audit.log")
	both, legacy := newLenientServer(t, "echo", "fail", "denied"), newRemoteServer(t, "echo")
	both.Resources = []string{"file:///a"}
	both.Replies = map[string]string{"fail": `"error":{"code":-32099,"message":"no"}`}
	address := freeAddress(t)
	rules := rulesForEve("deny both::denied", `redact sk-\w+`, "redact_fields password")
	load(t, auditTo(file)+site(address, gateway(append(rules,
		"audit arguments", "discovery on", both.line("both"), legacy.line("old"))...)))
	url, eve := "http://"+address, bearer(eveToken)

	type target struct{ server, tool, prompt, resource string }
	echo, denied := target{server: "both", tool: "echo"}, target{server: "both", tool: "denied"}
	greet, resource := target{server: "both", prompt: "greet"}, target{server: "both", resource: "file:///a"}
	const arguments = `{"x":1,"key":"a sk-secret","in":{"password":"secret","text":"{\"password\":\"secret\"}"}}`
	// The admin API sorts members.
	const sorted = `{"in":{"password":"[redacted]","text":"{\"password\":\"[redacted]\"}"},"key":"a [redacted]","x":1}`
	const redacted = `{"x":1,"key":"a [redacted]","in":{"password":"[redacted]","text":"{\"password\":\"[redacted]\"}"}}`
	call := func(name string) string { return `{"name":"` + name + `","arguments":` + arguments + `}` }
	type auditCase struct {
		name      string
		do        func(t *testing.T)
		client    string
		want      target
		outcome   string // "" if denied
		arguments string
	}
	var cases []auditCase
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, eve)
		ask := func(method, params string) func(*testing.T) {
			return func(t *testing.T) { c.ask(t, method, params) }
		}
		for _, w := range []auditCase{
			{"a tool", ask("tools/call", call("both__echo")), "eve", echo, "ok", redacted},
			{"a tool of a legacy server", ask("tools/call", call("old__echo")), "eve",
				target{server: "old", tool: "echo"}, "ok", redacted},
			{"a tool that fails", ask("tools/call", call("both__fail")), "eve",
				target{server: "both", tool: "fail"}, "error", redacted},
			{"a denied tool", ask("tools/call", call("both__denied")), "eve", denied, "", ""},
			{"an unknown tool", ask("tools/call", call("none__x")), "eve",
				target{tool: "none__x"}, "invalid_params", redacted},
			{"a prompt", ask("prompts/get", call("both__greet")), "eve", greet, "ok", redacted},
			{"a resource", ask("resources/read", `{"uri":`+quote(proxiedURI("both", "file:///a"))+`}`), "eve",
				resource, "ok", ""},
			{"a tool of the gateway", ask("tools/call", `{"name":"search_tools","arguments":{"query":"a sk-secret"}}`), "eve",
				target{tool: "search_tools"}, "ok", `{"query":"a [redacted]"}`},
			{"a tool by call_tool", ask("tools/call", `{"name":"call_tool","arguments":`+call("both__echo")+`}`), "eve",
				echo, "ok", redacted},
			{"a denied tool by call_tool", ask("tools/call", `{"name":"call_tool","arguments":`+call("both__denied")+`}`),
				"eve", denied, "", ""},
		} {
			w.name += ", " + era.name
			cases = append(cases, w)
		}
	}
	for _, endpoint := range []string{mcpAt(url, "both"), rpcAt(url, "both")} {
		sendTo := func(method, params, token string) func(*testing.T) {
			return func(t *testing.T) { post(t, endpoint, rpc(method, params), acceptBoth, bearer(token)) }
		}
		cases = append(cases,
			auditCase{"a tool at " + endpoint, sendTo("tools/call", call("echo"), eveToken), "eve", echo, "ok", redacted},
			auditCase{"a denied tool at " + endpoint, sendTo("tools/call", call("denied"), eveToken), "eve", denied, "", ""},
			auditCase{"a client without rules at " + endpoint, sendTo("tools/call", call("echo"), zoeToken), "zoe", echo, "ok",
				arguments},
			auditCase{"a prompt at " + endpoint, sendTo("prompts/get", call("greet"), eveToken), "eve", greet, "ok", redacted},
			auditCase{"a resource at " + endpoint, sendTo("resources/read", `{"uri":"file:///a"}`, eveToken), "eve", resource,
				"ok", ""})
	}
	cases = append(cases, auditCase{"the admin API", func(t *testing.T) {
		control[struct{}](t, "POST", "/call", `{"tool":"both__echo","arguments":`+arguments+`,"client":"eve"}`, 200)
	}, "operator", echo, "ok", sorted})

	for i, w := range cases {
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
	if text, _ := os.ReadFile(file); bytes.Count(text, []byte("sk-secret")) != 2 { // calls of zoe
		t.Error("a secret is in the log")
	}
}

// Calls through `caddy mcp-stdio` belong to the operator. The log goes to standard error.
func TestAuditStdio(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	config := writeCaddyfile(t, site(freeAddress(t), gateway("audit all", "separator __", server.line("both"))))
	cmd := caddy(t, "mcp-stdio", "--config", config)
	cmd.Stdin = strings.NewReader(stdioHandshake + rpc("tools/call", `{"name":"both__echo","arguments":{"x":1}}`) + "\n")
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(logLines(t, log.Name()), func(line callLine) bool { return line.Message != "call" })
	if len(lines) != 1 || lines[0].Client != "operator" || lines[0].Tool != "echo" || lines[0].Outcome != "ok" ||
		lines[0].Arguments != nil {
		t.Errorf("got %+v", lines)
	}
}

// makeCalls makes calls of many clients at once, at each endpoint. It returns the ids of the calls,
// how many got no response because Caddy closed their connection, and how long they took.
func makeCalls(
	t *testing.T, url string, clients, each int, called func(),
) (ids []string, lost int64, took time.Duration) {
	t.Helper()
	httpClient := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: 2 * patience}
	t.Cleanup(httpClient.CloseIdleConnections)
	session := newSession(t, joinedAt(url))
	var all sync.WaitGroup
	var unanswered atomic.Int64
	began := time.Now()
	for c := range clients {
		endpoint, tool := joinedAt(url), "both__echo"
		if c%3 > 0 {
			endpoint, tool = []string{mcpAt(url, "both"), rpcAt(url, "both")}[c%3-1], "echo"
		}
		for i := range each {
			ids = append(ids, fmt.Sprintf("%d-%d", c, i))
		}
		mine := ids[len(ids)-each:]
		all.Go(func() {
			for _, id := range mine {
				message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call",`+
					`"params":{"name":%q,"arguments":{"call":%q}}}`, id, tool, id)
				status, body, err := doRequest(httpClient, request(t, t.Context(), "POST", endpoint, message, acceptBoth, session))
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

// callIDs returns the ids of calls in the log, in order.
func callIDs(lines []callLine) (ids []string) {
	for _, line := range lines {
		ids = append(ids, line.ID)
	}
	slices.Sort(ids)
	return ids
}

// Under load no line is missing, and all lines are in order.
func TestAuditUnderLoad(t *testing.T) {
	isolate(t)
	const clients, each = 50, 100
	file := filepath.Join(t.TempDir(), "audit.log")
	address := freeAddress(t)
	load(t, auditTo(file)+site(address, gateway("audit all", "separator __", newLenientServer(t, "echo").line("both"))))
	ids, lost, took := makeCalls(t, "http://"+address, clients, each, func() {})
	t.Logf("%.0f calls/s", clients*each/took.Seconds())
	slices.Sort(ids)
	if got := callIDs(awaitLines(t, file, len(ids))); !slices.Equal(got, ids) || lost > 0 {
		t.Errorf("got %d calls, %d lines, %d lost", len(ids), len(got), lost)
	}
}

// newSlowServer starts a server whose tool "slow" signals entered and waits for leave.
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

// Each reload moves the log to another file. Each call has one line in one file: a call that
// outlives a reload is in the file of the configuration that it ends under.
func TestAuditReload(t *testing.T) {
	isolate(t)
	dir := t.TempDir()
	server, entered, leave := newSlowServer(t)
	address := freeAddress(t)
	url := "http://" + address
	files := []string{filepath.Join(dir, "0.log"), filepath.Join(dir, "1.log"), filepath.Join(dir, "2.log")}
	configure := func(file string) {
		load(t, auditTo(file)+site(address, gateway("audit all", "separator __", server.line("both"))))
	}
	configure(files[0])
	slow := newTestClient(t, joinedAt(url), true, fullCapabilities).begin(t, "tools/call", callOf("both", "slow", "{}"))
	<-entered

	called := make(chan struct{}, 5_000)
	var sent []string
	var lost int64
	all := make(chan struct{})
	go func() {
		defer close(all)
		sent, lost, _ = makeCalls(t, url, 20, cap(called)/20, func() { called <- struct{}{} })
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
	var ran []string // calls that reached the server
	for _, call := range server.Received("tools/call") {
		if call.Tool() == "echo" {
			ran = append(ran, argumentsOf(call).Call)
		}
	}
	slices.Sort(ran)
	var logged []callLine
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
	if got := callIDs(slices.DeleteFunc(logged, isSlow)); !slices.Equal(got, ran) {
		t.Errorf("got %d calls, %d lines", len(ran), len(got))
	}
}

func isSlow(line callLine) bool { return line.Tool == "slow" }

// A call that outlives its gateway is in the log of that gateway.
func TestAuditAfterRemoval(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "audit.log")
	server, entered, leave := newSlowServer(t)
	address := freeAddress(t)
	load(t, auditTo(file)+site(address, gateway("audit all", "separator __", server.line("both"))))
	slow := newTestClient(t, joinedAt("http://"+address), true, fullCapabilities).begin(t, "tools/call",
		callOf("both", "slow", "{}"))
	<-entered
	load(t, site(freeAddress(t), "respond plain"))
	close(leave)
	slow.finish(t)
	if lines := awaitLines(t, file, 1); len(lines) != 1 || !isSlow(lines[0]) || lines[0].Outcome != "ok" {
		t.Errorf("got %+v", lines)
	}
}
