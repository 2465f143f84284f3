package integration

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// sequentialSession begins a session at /mcp. Its client gets a response only after the previous
// request was counted.
func sequentialSession(t *testing.T, url string) (ask func(method, message string, headers ...string) httpResponse) {
	t.Helper()
	one := sequentialClient(t)
	var session string
	ask = func(method, message string, headers ...string) httpResponse {
		t.Helper()
		return send(t, one, method, joinedAt(url), message, append([]string{acceptBoth, session}, headers...)...)
	}
	got := ask("POST", rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
		`"clientInfo":{"name":"test","version":"1"}}`))
	session = "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
	if got.StatusCode != 200 {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	if got := ask("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`); got.StatusCode != 202 {
		t.Fatalf("got %d %s, want 202", got.StatusCode, got.body)
	}
	return ask
}

var (
	countedRequest = regexp.MustCompile(`^requests_total\{gateway="all",method="([^"]*)",outcome="([^"]*)",` +
		`server="([^"]*)"\}$`)
	countedDuration = regexp.MustCompile(`^request_duration_seconds_count\{gateway="all",method="([^"]*)",` +
		`server="([^"]*)"\}$`)
)

// countRequests returns the requests in samples by "server method outcome", and the number of
// durations by "server method".
func countRequests(samples map[string]float64) (outcomes, durations map[string]float64) {
	outcomes, durations = map[string]float64{}, map[string]float64{}
	for sample, n := range samples {
		if m := countedRequest.FindStringSubmatch(sample); m != nil {
			outcomes[m[3]+" "+m[1]+" "+m[2]] = n
		}
		if m := countedDuration.FindStringSubmatch(sample); m != nil {
			durations[m[2]+" "+m[1]] = n
		}
	}
	return outcomes, durations
}

// newBrokenServer starts a server whose tools/list fails with this status, or with a JSON-RPC error
// if it is 200.
func newBrokenServer(t *testing.T, status int) *remoteServer {
	s := newRemoteServer(t, "tool")
	s.Replies = map[string]string{"tools/list": `"error":{"code":-32603,"message":"no list today"}`}
	s.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		fails := m.Method == "tools/list" && status != http.StatusOK
		if fails {
			http.Error(w, "no list today", status)
		}
		return fails
	}
	return s
}

// A request counts once for each server that it reaches. Requests for several servers or none count
// once without a server (A51).
func TestAggregateMetrics(t *testing.T) {
	isolate(t)
	slow := newRemoteServer(t, "tool")
	slow.Handle = func(_ http.ResponseWriter, m *mcptest.Received) bool {
		if m.Method == "tools/call" {
			<-t.Context().Done()
		}
		return false
	}
	url := serve(t, gateway("name all", child("alpha"), newRemoteServer(t, "tool").line("beta"),
		newBrokenServer(t, 200).line("refusing"), newBrokenServer(t, 503).line("broken"),
		block("server down http://127.0.0.1:1", "alias away"),
		block(slow.line("slow"), "timeout 300ms")))
	beginning := growth(t)
	ask := sequentialSession(t, url)
	ask("PUT", "") // everything before is counted when this returns
	t.Run("A51 the handshake", func(t *testing.T) {
		got, _ := countRequests(beginning())
		for _, want := range []string{" initialize ok", "alpha initialize ok", "beta initialize ok",
			"refusing initialize ok", "broken initialize ok", "slow initialize ok"} {
			if got[want] != 1 {
				t.Errorf("%s: %v in %v", want, got[want], got)
			}
		}
		if got["down server/discover connect_error"] < 1 { // the gateway may have retried
			t.Errorf("the server down is not in %v", got)
		}
	})
	one := func(names ...string) map[string]float64 {
		all := map[string]float64{}
		for _, name := range names {
			all[name] = 1
		}
		return all
	}
	call := func(name string) string { return rpc("tools/call", `{"name":`+quote(name)+`,"arguments":{}}`) }
	tests := []struct {
		name, method, message string
		want                  map[string]float64
	}{
		{"A51 a call of a child", "POST", call("alpha::pid"), one("alpha tools/call ok")},
		{"A51 a call over HTTP", "POST", call("beta::tool"), one("beta tools/call ok")},
		{"A51 an error of the server", "POST", call("alpha::nope"), one("alpha tools/call error")},
		{"A51 a prompt", "POST", rpc("prompts/get", `{"name":"alpha::p"}`), one("alpha prompts/get ok")},
		{"A51 a resource", "POST", rpc("resources/read", `{"uri":`+quote(proxiedURI("alpha", "file://alpha/data.txt"))+`}`),
			one("alpha resources/read ok")},
		{"A51 a server that times out", "POST", call("slow::tool"), one("slow tools/call timeout")},
		{"A51 an unreachable server", "POST", call("down::tool"), one("down tools/call connect_error")},
		{"A51 an alias is the server", "POST", call("away::tool"), one("down tools/call connect_error")},
		{"A51 a list, and servers that fail", "POST", rpc("tools/list", `{}`), one(" tools/list ok", "alpha tools/list ok",
			"beta tools/list ok", "slow tools/list ok",
			"refusing tools/list error", "broken tools/list http_5xx")},
		{"A51 an unknown server", "POST", call("absent::tool"), one(" tools/call invalid_params")},
		{"A51 an unknown method", "POST", rpc("made/up", `{}`), one(" other method_not_found")},
		{"A51 another unknown method", "POST", rpc("made/up"+strings.Repeat("x", 1000), `{}`),
			one(" other method_not_found")},
		{"A51 a request that the gateway answers", "POST", rpc("ping", `{}`), one(" ping ok")},
		{"A51 invalid JSON", "POST", `{`, one(" other parse_error")},
		{"A51 another HTTP method", "PUT", "", one(" other invalid_request")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			grown := growth(t)
			began := time.Now()
			got := ask(tt.method, tt.message)
			ask("GET", "", "Mcp-Session-Id: none") // returns after the request before was counted
			outcomes, durations := countRequests(grown())
			maps.DeleteFunc(outcomes, func(name string, _ float64) bool { return strings.HasPrefix(name, " stream ") })
			// The gateway may have retried an unreachable server.
			maps.DeleteFunc(outcomes, func(name string, _ float64) bool {
				return strings.HasPrefix(name, "down server/discover ")
			})
			if !maps.Equal(outcomes, tt.want) {
				t.Errorf("counted %v\nwant %v\nafter %v: %d %.300s", outcomes, tt.want, time.Since(began), got.StatusCode, got.body)
			}
			for name, n := range tt.want {
				if label := name[:strings.LastIndexByte(name, ' ')]; durations[label] != n {
					t.Errorf("%v durations of %q", durations[label], label)
				}
			}
		})
	}
	t.Run("A51 a client of the modern era", func(t *testing.T) {
		c := newTestClient(t, joinedAt(url), true, `{}`)
		for _, tt := range []struct{ method, params, want string }{
			{"tools/call", `{"name":"alpha::pid","arguments":{}}`, "alpha tools/call ok"},
			{"tools/call", `{"name":"alpha::nope","arguments":{}}`, "alpha tools/call error"},
			{"tools/call", `{"name":"slow::tool","arguments":{}}`, "slow tools/call timeout"},
			{"tools/call", `{"name":"down::tool","arguments":{}}`, "down tools/call connect_error"},
			{"tools/call", `{"name":"absent::tool","arguments":{}}`, " tools/call invalid_params"},
			{"server/discover", `{}`, " server/discover ok"},
			{"made/up", `{}`, " other method_not_found"},
		} {
			counted := func() (got map[string]float64) {
				grown := growth(t)
				c.ask(t, tt.method, tt.params)
				await.Until(t, tt.want, func() bool {
					got, _ = countRequests(grown())
					return got[tt.want] > 0
				})
				return got
			}
			counted() // after this the server is initialized
			got := counted()
			maps.DeleteFunc(got, func(name string, _ float64) bool {
				return !strings.Contains(name, " "+tt.method+" ") && !strings.Contains(name, " other ")
			})
			// The gateway may have retried an unreachable server.
			maps.DeleteFunc(got, func(name string, _ float64) bool { return strings.HasPrefix(name, "down server/discover ") })
			if !maps.Equal(got, one(tt.want)) {
				t.Errorf("%s %s: counted %v, want %s", tt.method, tt.params, got, tt.want)
			}
		}
	})
	t.Run("A51 no label value comes from the client", func(t *testing.T) {
		for sample := range metrics(t) {
			if strings.Contains(sample, "made/up") || strings.Contains(sample, "absent") || strings.Contains(sample, "away") {
				t.Error(sample)
			}
		}
	})
}

// A call at /mcp has the same log line as at the endpoint of its server.
func TestAggregateAccessLog(t *testing.T) {
	isolate(t)
	file, own := filepath.Join(t.TempDir(), "access.log"), filepath.Join(t.TempDir(), "own.log")
	const secret = "geheim"
	remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
	address := freeAddress(t)
	load(t, block("", "debug", block("log", "output file "+own, "format json"))+"\n"+
		site(address, block("log", "output file "+file, "format json"),
			block("map {header.X-User} {http.auth.user.id}", `~.+ "${0}"`), // as basic_auth would
			gateway("separator __", "mask 4000 2000 2000", child("alpha"), "server far http://"+upstream(t, remote)+"/mcp",
				block("server down http://127.0.0.1:1", "alias away"))))
	t.Cleanup(remote.Close)
	url := "http://" + address
	type fields struct {
		Server  *string `json:"mcp_server"`
		Method  *string `json:"mcp_method"`
		Tool    *string `json:"mcp_tool"`
		Client  *string `json:"mcp_client"`
		Code    *int    `json:"mcp_error_code"`
		Strings *int    `json:"mcp_masked_strings"`
		Chars   *int    `json:"mcp_masked_chars"`
	}
	ask := sequentialSession(t, url)
	tests := []struct {
		name, message string
		want          fields
	}{
		{"a call", rpc("tools/call", `{"name":"alpha__echo","arguments":{"text":"`+secret+`"}}`),
			fields{Server: new("alpha"), Method: new("tools/call"), Tool: new("echo")}},
		{"a call over HTTP", rpc("tools/call", `{"name":"far__echo","arguments":{"text":"`+secret+`"}}`),
			fields{Server: new("far"), Method: new("tools/call"), Tool: new("echo")}},
		{"a masked call", rpc("tools/call", `{"name":"alpha__big","arguments":{"n":5000,"c":"ß"}}`),
			fields{Server: new("alpha"), Method: new("tools/call"), Tool: new("big"), Strings: new(1), Chars: new(1000)}},
		{"a masked call over HTTP", rpc("tools/call", `{"name":"far__echo","arguments":{"text":"`+strings.Repeat(secret,
			1000)+`"}}`),
			fields{Server: new("far"), Method: new("tools/call"), Tool: new("echo"), Strings: new(1),
				Chars: new(len(`{"name":"echo","arguments":{"text":""}}`) + 6000 - 4000)}},
		{"an error of the server", rpc("tools/call", `{"name":"far__fail","arguments":{"code":-32000,"message":"`+secret+
			`"}}`),
			fields{Server: new("far"), Method: new("tools/call"), Tool: new("fail"), Code: new(-32000)}},
		{"an error of the gateway", rpc("tools/call", `{"name":"away__tool","arguments":{"x":"`+secret+`"}}`),
			fields{Server: new("down"), Method: new("tools/call"), Tool: new("tool"), Code: new(-32002)}},
		{"a tool of an unknown server", rpc("tools/call", `{"name":"absent__tool","arguments":{"x":"`+secret+`"}}`),
			fields{Method: new("tools/call"), Tool: new("absent__tool"), Code: new(-32602)}},
		{"a prompt", rpc("prompts/get", `{"name":"alpha__p","arguments":{"who":"`+secret+`"}}`),
			fields{Server: new("alpha"), Method: new("prompts/get"), Tool: new("p")}},
		{"a list", rpc("tools/list", `{}`), fields{Method: new("tools/list")}},
		{"an unknown method", rpc("made/up", `{"x":"`+secret+`"}`), fields{Method: new("made/up"), Code: new(-32601)}},
	}
	before := len(linesOf(t, file))
	for _, tt := range tests {
		ask("POST", tt.message)
	}
	ask("PUT", "")
	modern := &testClient{&mcpclient.Client{URL: joinedAt(url), Modern: true, Capabilities: `{}`, HTTP: streamClient}}
	one := sequentialClient(t)
	for _, params := range []string{callOf("alpha", "big", `{"n":5000,"c":"`+secret+`"}`),
		callOf("far", "echo", `{"text":"`+secret+`"}`)} {
		body, headers := modern.Message("1", "tools/call", params)
		send(t, one, "POST", joinedAt(url), body, append(headers, "X-User: alice")...)
	}
	send(t, one, "PUT", joinedAt(url), "")
	lines := linesOf(t, file)[before:]
	for name, log := range map[string][]string{"access log": lines, "log": linesOf(t, own)} {
		if index := strings.Index(strings.Join(log, "\n"), secret); index >= 0 {
			text := strings.Join(log, "\n")
			t.Errorf("arguments or results are in the %s: …%s…", name, text[max(0, index-300):min(len(text), index+100)])
		}
	}
	if len(lines) < len(tests)+3 {
		t.Fatalf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	check := func(name, line string, want fields) {
		t.Run(name, func(t *testing.T) {
			logged(t, line, want)
			for _, field := range []string{`"mcp_server"`, `"mcp_method"`, `"mcp_tool"`, `"mcp_masked_strings"`,
				`"mcp_masked_chars"`} {
				if strings.Count(line, field) > 1 {
					t.Errorf("%s occurs twice in %s", field, line)
				}
			}
		})
	}
	for i, tt := range tests {
		check(tt.name, lines[i], tt.want)
	}
	lines = lines[len(tests)+1:]
	check("a masked call of the modern era to a server of the other", lines[0],
		fields{Server: new("alpha"), Method: new("tools/call"), Tool: new("big"), Client: new("alice"), Strings: new(1),
			Chars: new(26000)})
	check("a call of the modern era", lines[1], fields{Server: new("far"), Method: new("tools/call"), Tool: new("echo"),
		Client: new("alice")})
}

// serverPlaceholders are header directives of a server block that show the values of placeholders.
var serverPlaceholders = []string{
	"request_header X-Server {http.mcp.server}",
	"request_header X-Method {http.mcp.method}",
	"request_header X-Tool {http.mcp.tool}",
	"request_header X-Client {http.mcp.client}",
	"request_header X-Unique {http.request.uuid}",
	"request_header X-Set {vars.set}",
	"request_header X-Path {http.request.uri.path}",
}

var isUUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func TestAggregatePlaceholders(t *testing.T) {
	isolate(t)
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			old, young := &mcptest.Remote{Name: "old", Legacy: true}, &mcptest.Remote{Name: "young", Modern: true}
			url := serve(t, block("map {header.X-User} {http.auth.user.id}", `~.+ "${0}"`), "vars set front",
				gateway("separator __", block("server old http://"+upstream(t, old)+"/mcp", serverPlaceholders...),
					block("server young http://"+upstream(t, young)+"/mcp", serverPlaceholders...)))
			t.Cleanup(old.Close)
			t.Cleanup(young.Close)
			c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, "X-User: alice")
			for _, s := range []*mcptest.Remote{old, young} {
				c.use(t, s.Name, "echo", `{"text":"x"}`)
				c.ask(t, "prompts/get", `{"name":"`+s.Name+`__p"}`)
				c.ask(t, "tools/list", `{}`)
				for _, want := range []struct{ method, tool string }{{"tools/call", "echo"}, {"prompts/get", "p"},
					{"tools/list", ""}} {
					seen := s.Seen(want.method)
					if len(seen) == 0 {
						t.Fatalf("%s did not receive %s", s.Name, want.method)
					}
					for _, m := range seen {
						for name, value := range map[string]string{"X-Server": s.Name, "X-Method": want.method, "X-Tool": want.tool,
							"X-Client": "alice", "X-Set": "front", "X-Path": "/mcp"} {
							if got := m.Header.Get(name); got != value {
								t.Errorf("%s of %s: %s: got %q, want %q", want.method, s.Name, name, got, value)
							}
						}
						if got := m.Header.Get("X-Unique"); !isUUID.MatchString(got) {
							t.Errorf("%s of %s: got X-Unique %q", want.method, s.Name, got)
						}
					}
				}
			}
		})
	}
}

// Many servers get requests at once, each with its own placeholders. The race detector checks this,
// too.
func TestAggregatePlaceholdersInFanOut(t *testing.T) {
	isolate(t)
	const servers, clients, rounds = 20, 4, 5
	var mu sync.Mutex
	seen := map[string]int{} // by server and method
	lines := []string{"separator __"}
	for i := range servers {
		name := "s" + strconv.Itoa(i)
		s := newRemoteServer(t, "tool")
		s.Handle = func(_ http.ResponseWriter, r *mcptest.Received) bool {
			header := r.HTTP.Header
			if got := header.Get("X-Server"); got != name {
				t.Errorf("%s received the name %q", name, got)
			}
			if got := header.Get("X-Unique"); !isUUID.MatchString(got) {
				t.Errorf("%s: got X-Unique %q", name, got)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[name+" "+header.Get("X-Method")+" "+header.Get("X-Client")]++
			return false
		}
		lines = append(lines, block(s.line(name), serverPlaceholders...))
	}
	url := serve(t, block("map {header.X-User} {http.auth.user.id}", `~.+ "${0}"`), "vars set front", gateway(lines...))
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			user := "X-User: u" + strconv.Itoa(i)
			for round := range rounds {
				// Each client needs new sessions with the servers.
				hello := rpc("initialize", fmt.Sprintf(`{"protocolVersion":"2025-11-25","capabilities":{},`+
					`"clientInfo":{"name":"test","version":"%d"}}`, round))
				session := ""
				for _, message := range []string{hello, `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
					rpc("tools/list", `{}`), `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`} {
					res, err := streamClient.Do(request(t, t.Context(), "POST", joinedAt(url), message, acceptBoth, user, session))
					if err != nil {
						t.Error(err)
						return
					}
					if id := res.Header.Get("Mcp-Session-Id"); id != "" {
						session = "Mcp-Session-Id: " + id
					}
					res.Body.Close()
					if res.StatusCode/100 != 2 {
						t.Errorf("%s: %d", message, res.StatusCode)
					}
				}
			}
		})
	}
	all.Wait()
	for i := range servers {
		for j := range clients {
			for _, method := range []string{"initialize", "notifications/initialized", "tools/list"} {
				if key := fmt.Sprintf("s%d %s u%d", i, method, j); seen[key] != rounds {
					t.Errorf("%s: %d times, want %d", key, seen[key], rounds)
				}
			}
		}
	}
}
