package integration

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// metrics returns the samples of this project at Caddy's metrics endpoint, by name without the
// common prefix: masked_chars_total{server="sample"}.
func metrics(t *testing.T) map[string]float64 {
	t.Helper()
	samples := map[string]float64{}
	for line := range strings.Lines(admin(t, "GET", "/metrics", "").body) {
		sample, ok := strings.CutPrefix(line, "caddy_mcp_")
		if !ok {
			continue
		}
		space := strings.LastIndexByte(sample, ' ')
		n, err := strconv.ParseFloat(strings.TrimSpace(sample[space+1:]), 64)
		if err != nil {
			t.Fatal(err)
		}
		samples[sample[:space]] = n
	}
	return samples
}

// growth returns a function that returns the samples that have changed since, with the difference.
func growth(t *testing.T) func() map[string]float64 {
	t.Helper()
	before := metrics(t)
	return func() map[string]float64 {
		t.Helper()
		grown := metrics(t)
		for sample := range grown {
			grown[sample] -= before[sample]
			if grown[sample] == 0 {
				delete(grown, sample)
			}
		}
		return grown
	}
}

func TestMetrics(t *testing.T) {
	isolate(t)
	stub := upstream(t, new(mcptest.Stub))
	for server, options := range map[string]string{"metered": block("", "metrics") + "\n", "": ""} {
		t.Run("server "+strconv.Quote(server), func(t *testing.T) {
			address := freeAddress(t)
			config := options + site(address, mask("server "+strconv.Quote(server)), proxy(stub))
			load(t, config)
			grown := growth(t)
			count := func(strings, chars float64) {
				t.Helper()
				label := "{server=" + strconv.Quote(server) + "}"
				if got := grown()["masked_strings_total"+label]; got != strings {
					t.Errorf("%v strings masked, want %v", got, strings)
				}
				if got := grown()["masked_chars_total"+label]; got != chars {
					t.Errorf("%v characters masked, want %v", got, chars)
				}
			}

			long := `"` + strings.Repeat("A", 5000) + `"`
			post(t, "http://"+address, raw(result("["+long+","+long+"]")))
			count(2, 2000)
			post(t, "http://"+address, raw(result(`"short"`)))
			count(2, 2000)
			post(t, "http://"+address, rpc("sse", `{"n":1,"size":4001}`))
			count(3, 2001)

			load(t, config+site(freeAddress(t), "respond x")) // counters survive a reload
			count(3, 2001)
			post(t, "http://"+address, raw(result(long)))
			count(4, 3001)
		})
	}
}

func TestAccessLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+file, "format json"),
		mask("server sample"), proxy(upstream(t, mcpsample.NewServer())))

	const secret = "geheim"
	type fields struct {
		Server  *string `json:"mcp_server"`
		Method  *string `json:"mcp_method"`
		Tool    *string `json:"mcp_tool"`
		Strings *int    `json:"mcp_masked_strings"`
		Chars   *int    `json:"mcp_masked_chars"`
	}
	tests := []struct {
		name    string
		request string
		accept  string
		want    fields
	}{
		{"a masked call", rpc("tools/call", `{"name":"echo","arguments":{"text":`+quote(strings.Repeat(secret, 1000))+`}}`),
			"",
			fields{new("sample"), new("tools/call"), new("echo"), new(1), new(2000)}},
		{"a masked call with an event as response", rpc("tools/call", `{"name":"echo","arguments":{"text":`+
			quote(strings.Repeat(secret, 1000))+`}}`), "text/event-stream",
			fields{new("sample"), new("tools/call"), new("echo"), new(1), new(2000)}},
		{"an unmasked call", rpc("tools/call", `{"arguments":{"text":`+quote(secret)+`},"name":"echo"}`), "",
			fields{new("sample"), new("tools/call"), new("echo"), nil, nil}},
		{"a request without a name", rpc("tools/list", `{}`), "", fields{Server: new("sample"), Method: new("tools/list")}},
		{"not JSON-RPC", "x", "", fields{Server: new("sample")}},
	}
	client := sequentialClient(t)
	for _, tt := range tests {
		send(t, client, "POST", url, tt.request, "Accept: "+tt.accept)
	}
	send(t, client, "GET", url, "")

	lines := linesOf(t, file)
	if strings.Contains(strings.Join(lines, "\n"), secret) {
		t.Error("the log contains arguments or results")
	}
	if len(lines) < len(tests) {
		t.Fatalf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { logged(t, lines[i], tt.want) })
	}
}

// sequentialClient returns a client with one connection: a request is served only after the request
// before it was counted and logged.
func sequentialClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func linesOf(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// logged checks the fields of a line of the access log. A nil field must be absent.
func logged[T any](t *testing.T, line string, want T) {
	t.Helper()
	var got T
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatal(err)
	}
	wanted, _ := json.Marshal(want)
	if has, _ := json.Marshal(got); string(has) != string(wanted) {
		t.Errorf("logged %s\nwant %s", has, wanted)
	}
}

// Two masks in one request's chain write one line, with each field once.
func TestAccessLogOfChainedMasks(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+file, "format json"),
		block("route", mask("server outer"), mask("server inner"), proxy(upstream(t, mcpsample.NewServer()))))
	client := sequentialClient(t)
	for range 2 { // the second starts after the line of the first is written
		send(t, client, "POST", url, rpc("tools/call", `{"name":"read_log"}`))
	}
	line := linesOf(t, file)[0]
	for _, field := range []string{`"mcp_server":"outer"`, `"mcp_method":`, `"mcp_tool":`, `"mcp_masked_strings":1`,
		`"mcp_masked_chars":`} {
		if strings.Count(line, field) != 1 || strings.Contains(line, "inner") {
			t.Errorf("%s in %s", field, line)
		}
	}
}

func TestGatewayMetrics(t *testing.T) {
	isolate(t)
	stub := upstream(t, new(mcptest.Stub))
	url := serve(t, gateway("name local",
		"server stub http://"+stub, "server down http://127.0.0.1:1",
		block("server slow http://"+stub, "timeout 300ms"), block("server aliased http://"+stub, "alias other")))
	known := func(method, answer string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"name":"x"}}` + answer
	}
	tests := []struct {
		name, method, endpoint, request string
		want                            string // server, method, outcome
	}{
		{"a response", "POST", rpcAt(url, "stub"), rpc("echo", `1`), "stub other ok"},
		{"an alias is the server", "POST", mcpAt(url, "other"), rpc("echo", `1`), "aliased other ok"},
		{"a method of the protocol", "POST", mcpAt(url, "stub"), known("tools/call", ""), "stub tools/call error"},
		{"an error at /rpc", "POST", rpcAt(url, "stub"), known("tools/list", ""), "stub tools/list error"},
		{"an error in a stream", "POST", mcpAt(url, "stub"), raw(event(`{"jsonrpc":"2.0","id":9,"error":{"code":1}}`)+
			event(`{"jsonrpc":"2.0","id":1,"error":{"code":1}}`), `"ctype":"text/event-stream"`), "stub other error"},
		{"an error of another request in a stream", "POST", mcpAt(url, "stub"),
			raw(event(`{"jsonrpc":"2.0","id":9,"error":{"code":1}}`)+event(result(`1`)), `"ctype":"text/event-stream"`),
			"stub other ok"},
		{"a notification", "POST", mcpAt(url, "stub"), `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			"stub notifications/initialized error"},
		{"a client's response", "POST", mcpAt(url, "stub"), `{"jsonrpc":"2.0","id":1,"result":{}}`, "stub answer error"},
		{"a refused GET stream", "GET", mcpAt(url, "stub"), "", "stub stream http_4xx"},
		{"DELETE", "DELETE", mcpAt(url, "stub"), "", "stub delete http_4xx"},
		{"a status of the server", "POST", mcpAt(url, "stub"), raw("", `"status":503`), "stub other http_5xx"},
		{"a status at /rpc", "POST", rpcAt(url, "stub"), raw("", `"status":503`), "stub other http_error"},
		{"an unreachable server", "POST", mcpAt(url, "down"), known("ping", ""), "down ping connect_error"},
		{"a timeout", "POST", mcpAt(url, "slow"), rpc("sleep", `{"ms":60000}`), "slow other timeout"},
		{"an unknown server", "POST", mcpAt(url, "made-up"), known("ping", ""), " ping unknown_server"},
		{"invalid JSON", "POST", rpcAt(url, "stub"), "{", "stub other parse_error"},
		{"another HTTP method", "PUT", rpcAt(url, "stub"), "", "stub other invalid_request"},
	}
	one := sequentialClient(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			grown := growth(t)
			send(t, one, tt.method, tt.endpoint, tt.request)
			send(t, one, "GET", url, "") // returns after the request before was counted
			want := strings.Split(tt.want, " ")
			labels := `gateway="local",method="` + want[1] + `",`
			counter := `requests_total{` + labels + `outcome="` + want[2] + `",server="` + want[0] + `"}`
			count := `request_duration_seconds_count{` + labels + `server="` + want[0] + `"}`
			got := grown()
			if got[counter] != 1 || got[count] != 1 {
				t.Errorf("grown: %v", slices.Collect(maps.Keys(got)))
			}
		})
	}
}

func TestGatewayCountsClientsThatLeave(t *testing.T) {
	isolate(t)
	asked := make(chan struct{}, 1)
	address := upstream(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	url := serve(t, gateway("server waits http://"+address))
	for _, endpoint := range []string{rpcAt(url, "waits"), mcpAt(url, "waits")} {
		grown := growth(t)
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			if res, err := client.Do(request(t, ctx, "POST", endpoint, rpc("ping", `1`))); err == nil {
				res.Body.Close()
			}
		}()
		wait(t, asked, "the request")
		leave()
		await.Until(t, "the request to be counted as canceled", func() bool {
			return grown()[`requests_total{gateway="",method="ping",outcome="canceled",server="waits"}`] == 1
		})
	}
}

func TestGatewayAccessLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	stub := upstream(t, new(mcptest.Stub))
	authenticated := block("map {header.X-User} {http.auth.user.id}", `~.+ "${0}"`) // as basic_auth does
	url := serve(t, block("log", "output file "+file, "format json"), authenticated,
		gateway("mask", "server stub http://"+stub, "server down http://127.0.0.1:1", block("server aliased http://"+stub,
			"alias other")))
	type fields struct {
		Server  *string `json:"mcp_server"`
		Method  *string `json:"mcp_method"`
		Tool    *string `json:"mcp_tool"`
		Client  *string `json:"mcp_client"`
		Code    *int    `json:"mcp_error_code"`
		Strings *int    `json:"mcp_masked_strings"`
		Chars   *int    `json:"mcp_masked_chars"`
	}
	const secret = "geheim"
	tests := []struct {
		name, endpoint, request string
		want                    fields
	}{
		{"an error of the server", mcpAt(url, "stub"), rpc("tools/call", `{"name":"read","arguments":{"x":"`+secret+`"}}`),
			fields{Server: new("stub"), Method: new("tools/call"), Tool: new("read"), Code: new(-32601)}},
		{"an error of the server at /rpc", rpcAt(url, "other"), rpc("tools/call", `{"name":"read"}`),
			fields{Server: new("aliased"), Method: new("tools/call"), Tool: new("read"), Code: new(-32601)}},
		{"a masked response", mcpAt(url, "stub"), rpc("big", `{"n":5000}`), fields{Server: new("stub"), Method: new("big"),
			Strings: new(1), Chars: new(1000)}},
		{"an error of the gateway", mcpAt(url, "down"), rpc("prompts/get", `{"name":"p"}`),
			fields{Server: new("down"), Method: new("prompts/get"), Tool: new("p"), Code: new(-32002)}},
		{"an unknown server", mcpAt(url, "nope"), rpc("ping", `1`), fields{Method: new("ping"), Code: new(-32001)}},
		{"no JSON", mcpAt(url, "stub"), secret, fields{Server: new("stub"), Code: new(-32700)}},
		{"a name with a line break", mcpAt(url, "stub"), rpc("tools/call", `{"name":"a\nb\""}`),
			fields{Server: new("stub"), Method: new("tools/call"), Tool: new("a\nb\""), Code: new(-32601)}},
		{"a very long name", mcpAt(url, "stub"), rpc("tools/call", `{"name":"`+strings.Repeat("é", 5000)+`"}`),
			fields{Server: new("stub"), Method: new("tools/call"), Tool: new(strings.Repeat("é", 256) + "…"),
				Code: new(-32601)}},
	}
	one := sequentialClient(t)
	for _, tt := range tests {
		send(t, one, "POST", tt.endpoint, tt.request)
	}
	send(t, one, "POST", mcpAt(url, "stub"), rpc("echo", `1`), "X-User: alice")
	send(t, one, "GET", url, "")
	lines := linesOf(t, file)
	if strings.Contains(strings.Join(lines, "\n"), secret) {
		t.Error("the log contains arguments")
	}
	t.Run("an authenticated client", func(t *testing.T) {
		logged(t, lines[len(tests)], fields{Server: new("stub"), Method: new("echo"), Client: new("alice")})
	})
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			logged(t, lines[i], tt.want)
			for _, field := range []string{`"mcp_server"`, `"mcp_method"`, `"mcp_tool"`} {
				if strings.Count(lines[i], field) > 1 {
					t.Errorf("%s occurs twice in %s", field, lines[i])
				}
			}
		})
	}
}

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

func TestPrunerMetrics(t *testing.T) {
	isolate(t)
	rr, rerankerURL := newFakeReranker(t, "/cohere")
	address := freeAddress(t)
	config := site(address, block("handle /cloud/*", pruner(block("backend rerank", "url "+rerankerURL))),
		pruner("max_input_chars 50000"))
	load(t, config)
	local, cloud := "http://"+address+"/rpc", "http://"+address+"/cloud/rpc"
	grown := growth(t)
	expect := func(want map[string]float64) {
		t.Helper()
		got := grown()
		for sample := range got {
			if strings.HasPrefix(sample, "prune_duration_seconds_bucket") || strings.HasPrefix(sample,
				"prune_duration_seconds_sum") || !strings.HasPrefix(sample, "prune") {
				delete(got, sample)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("metrics grew by %v\nwant %v", got, want)
		}
	}
	one := pruneText(t, local, prunable{text: numbered(1000)}).Stats
	want := map[string]float64{
		`pruned_lines_total{backend="heuristic"}`:           float64(one.Pruned),
		`prune_tokens_saved_total{backend="heuristic"}`:     float64(one.Saved),
		`prune_duration_seconds_count{backend="heuristic"}`: 1,
	}
	expect(want)
	pruneText(t, local, prunable{text: numbered(20000)})
	want[`prune_fallbacks_total{backend="heuristic",reason="input_too_large"}`] = 1
	want[`prune_duration_seconds_count{backend="heuristic"}`]++
	expect(want)

	two := pruneText(t, cloud, prunable{text: keepLines(60, 7)}).Stats
	want[`pruned_lines_total{backend="rerank"}`] = float64(two.Pruned)
	want[`prune_duration_seconds_count{backend="rerank"}`] = 1
	if two.Saved > 0 {
		want[`prune_tokens_saved_total{backend="rerank"}`] = float64(two.Saved)
	}
	expect(want)
	rr.mood.Store("/429")
	three := pruneText(t, cloud, prunable{text: numbered(500)}).Stats
	want[`pruned_lines_total{backend="rerank"}`] += float64(three.Pruned)
	want[`prune_tokens_saved_total{backend="rerank"}`] += float64(three.Saved)
	want[`prune_duration_seconds_count{backend="rerank"}`]++
	want[`prune_fallbacks_total{backend="rerank",reason="rerank_http_error"}`] = 1
	expect(want)

	load(t, config+site(freeAddress(t), "respond x")) // counters survive a reload
	failsWith(t, local, toolCall{"prune_text", `{}`}.request(), -32602)
	post(t, local, toolCall{"health", `{}`}.request())
	expect(want)
	four := pruneText(t, local, prunable{text: numbered(1000)}).Stats
	want[`pruned_lines_total{backend="heuristic"}`] += float64(four.Pruned)
	want[`prune_tokens_saved_total{backend="heuristic"}`] += float64(four.Saved)
	want[`prune_duration_seconds_count{backend="heuristic"}`]++
	expect(want)
}

func TestPrunerAccessLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+file, "format json"),
		block("handle /alone/*", pruner("max_input_chars 50000")), gateway("separator __", block("server pruner", "mask off",
			pruner())))
	alone := url + "/alone/rpc"
	const secret = "geheim"
	text := strings.Repeat(secret+" text\n", 1000)
	type fields struct {
		Server   *string `json:"mcp_server"`
		Tool     *string `json:"mcp_tool"`
		Backend  *string `json:"mcp_prune_backend"`
		Lines    *int    `json:"mcp_pruned_lines"`
		Saved    *int    `json:"mcp_prune_tokens_saved"`
		Fallback *string `json:"mcp_prune_fallback"`
	}
	good, large := prunable{text: text, goal: secret + "er"}, prunable{text: strings.Repeat(text, 10), goal: secret}
	answered := pruneText(t, alone, good)
	lines, saved := answered.Stats.Pruned, answered.Stats.Saved
	tests := []struct {
		name, at, request string
		want              fields
	}{
		{"a pruned text", alone, good.request(), fields{Tool: new("prune_text"), Backend: new("heuristic"), Lines: &lines,
			Saved: &saved}},
		{"a text too large", alone, large.request(), fields{Tool: new("prune_text"), Backend: new("heuristic"),
			Lines: new(0), Saved: new(0), Fallback: new("input_too_large")}},
		{"recovered lines", alone, toolCall{"recover_text", recoverArguments(answered.PruneID, false, 1, 1)}.request(),
			fields{Tool: new("recover_text")}},
		{"an unknown id", alone, toolCall{"recover_text", recoverArguments("prn_"+secret, false, 1, 1)}.request(),
			fields{Tool: new("recover_text")}},
		{"health", alone, toolCall{"health", `{}`}.request(), fields{Tool: new("health")}},
		{"invalid arguments", alone, toolCall{"prune_text", `{"` + secret + `":1}`}.request(),
			fields{Tool: new("prune_text")}},
		{"not a call", alone, rpc("tools/list", `{}`), fields{}},
		{"not a message", alone, "{" + secret, fields{}},
		{"behind a gateway", rpcAt(url, "pruner"), good.request(), fields{Server: new("pruner"), Tool: new("prune_text"),
			Backend: new("heuristic"), Lines: &lines, Saved: &saved}},
	}
	one := sequentialClient(t)
	skip := len(linesOf(t, file))
	for _, tt := range tests {
		send(t, one, "POST", tt.at, tt.request)
	}
	send(t, one, "GET", url, "")
	logs := linesOf(t, file)[skip:]
	if all := strings.Join(logs, "\n"); strings.Contains(all, secret) || strings.Contains(all, answered.PruneID) {
		t.Error("the log contains texts, goals or ids")
	}
	if len(logs) < len(tests) {
		t.Fatalf("got %d log lines, want %d", len(logs), len(tests))
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			logged(t, logs[i], tt.want)
			for _, field := range []string{`"mcp_tool":`, `"mcp_prune_backend":`, `"mcp_pruned_lines":`} {
				if strings.Count(logs[i], field) > 1 {
					t.Errorf("%s occurs twice: %s", field, logs[i])
				}
			}
		})
	}
}

// A collector receives the spans that Caddy exports.
type collector struct {
	mu    sync.Mutex
	spans []collectedSpan
}

// A collectedSpan is a span with its attributes as strings.
type collectedSpan struct {
	*tracepb.Span
	attributes map[string]string
	trace      string
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var data tracepb.TracesData // has the wire format of an export request
	if err := proto.Unmarshal(body, &data); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range data.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s := collectedSpan{span, map[string]string{}, hex.EncodeToString(span.GetTraceId())}
				for _, a := range span.GetAttributes() {
					s.attributes[a.GetKey()] = a.GetValue().GetStringValue()
					if a.GetValue().GetStringValue() == "" {
						s.attributes[a.GetKey()] = fmt.Sprint(a.GetValue().GetIntValue())
					}
				}
				c.spans = append(c.spans, s)
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// span waits for the span of a trace that has MCP attributes.
func (c *collector) span(t *testing.T, trace string) (found collectedSpan) {
	t.Helper()
	await.Until(t, "the span of "+trace, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.spans {
			if s.trace == trace && s.attributes["mcp.method.name"] != "" {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// newCollector makes Caddy's tracing module send spans to a collector.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := new(collector)
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + upstream(t, c), "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
		"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "always_on",
		"OTEL_PROPAGATORS": "tracecontext",
	} {
		setenv(t, name, value)
	}
	return c
}

var traceparents = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-01$`)

// traceparentIn returns the traceparent in the _meta of params, and its trace ID.
func traceparentIn(t *testing.T, params string) (traceparent, trace string) {
	t.Helper()
	var p struct {
		Meta struct{ Traceparent string } `json:"_meta"`
	}
	if err := json.Unmarshal([]byte(params), &p); err != nil {
		t.Fatalf("%v: %s", err, params)
	}
	m := traceparents.FindStringSubmatch(p.Meta.Traceparent)
	if m == nil {
		t.Fatalf("no traceparent in %s", params)
	}
	return p.Meta.Traceparent, m[1]
}

// clientTraceparent is the traceparent that a client sends.
const clientTraceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestOperateTracing(t *testing.T) {
	isolate(t)
	spans := newCollector(t)
	defer load(t, "") // flushes the spans before the collector closes
	journal := newJournal(t)
	far := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
	url := serve(t, block("tracing", "span mcp"), gateway("name traces", "separator __",
		block(child("old"), journal.env()), block(child("new", "--modern-only"), journal.env()), "server far http://"+
			upstream(t, far)+"/mcp"))
	t.Cleanup(far.Close)

	type call struct {
		name, server string
		// calls the tool and returns the params that the server received
		echo func(t *testing.T, meta string, headers ...string) string
	}
	var calls []call
	for _, era := range clientEras {
		for _, server := range []string{"old", "new", "far"} {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			calls = append(calls, call{server + " at the aggregate, " + era.name, server, func(t *testing.T, meta string,
				headers ...string) string {
				got := c.ask(t, "tools/call", callOf(server, "echo", `{"text":"x"}`, meta), headers...)
				return got.answer.Text()
			}})
		}
	}
	alone := newTestClient(t, mcpAt(url, "old"), false, `{}`)
	calls = append(calls, call{"old at its own endpoint", "old", func(t *testing.T, meta string,
		headers ...string) string {
		return alone.ask(t, "tools/call", `{"name":"echo","arguments":{"text":"x"},`+meta+`}`, headers...).answer.Text()
	}}, call{"old by plain POST", "old", func(t *testing.T, meta string, headers ...string) string {
		got := post(t, rpcAt(url, "old"), rpc("tools/call", `{"name":"echo","arguments":{"text":"x"},`+meta+`}`), headers...)
		return toolText(t, got.body)
	}})

	check := func(t *testing.T, span collectedSpan, server string) {
		t.Helper()
		for name, want := range map[string]string{"mcp.method.name": "tools/call", "gen_ai.tool.name": "echo",
			"gen_ai.operation.name": "execute_tool", "mcp.server.name": server} {
			if got := span.attributes[name]; got != want {
				t.Errorf("%s is %q, want %q; attributes: %v", name, got, want, span.attributes)
			}
		}
		if span.attributes["error.type"] != "" || span.GetName() != "mcp" {
			t.Errorf("span %q with %v", span.GetName(), span.attributes)
		}
	}
	for _, tt := range calls {
		t.Run(tt.name, func(t *testing.T) {
			t.Run("the server receives the trace of Caddy's span", func(t *testing.T) {
				_, trace := traceparentIn(t, tt.echo(t, `"_meta":{"x":1}`))
				check(t, spans.span(t, trace), tt.server)
			})
			t.Run("the trace of the client continues", func(t *testing.T) {
				const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
				_, got := traceparentIn(t, tt.echo(t, `"_meta":{"x":1}`, "Traceparent: 00-"+trace+"-00f067aa0ba902b7-01"))
				if got != trace {
					t.Errorf("got the trace %s, want the client's", got)
				}
			})
			t.Run("a traceparent in the client's message is unchanged", func(t *testing.T) {
				got, _ := traceparentIn(t, tt.echo(t, `"_meta":{"traceparent":"`+clientTraceparent+`","tracestate":"a=b"}`))
				if got != clientTraceparent {
					t.Errorf("the server received %s", got)
				}
			})
		})
	}
	t.Run("a server over HTTP also receives a header", func(t *testing.T) {
		for _, m := range far.Seen("tools/call") {
			_, trace := traceparentIn(t, paramsOf(t, m.Body))
			if strings.Contains(m.Body, clientTraceparent) {
				continue
			}
			if got := traceparents.FindStringSubmatch(m.Header.Get("Traceparent")); got == nil || got[1] != trace {
				t.Errorf("header %q, message %s", m.Header.Get("Traceparent"), m.Body)
			}
		}
	})
	t.Run("an error sets the status of the span", func(t *testing.T) {
		const trace = "11111111111111111111111111111111"
		post(t, rpcAt(url, "old"), toolCall{"nope", `{}`}.request(), "Traceparent: 00-"+trace+"-00f067aa0ba902b7-01")
		span := spans.span(t, trace)
		if span.attributes["error.type"] == "" || span.attributes["rpc.jsonrpc.error_code"] != "-32602" ||
			span.attributes["gen_ai.tool.name"] != "nope" {
			t.Errorf("got %v", span.attributes)
		}
		if span.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR {
			t.Errorf("status %v", span.GetStatus())
		}
	})
	t.Run("spans contain no arguments and no results", func(t *testing.T) {
		const trace, secret = "22222222222222222222222222222222", "geheim"
		post(t, rpcAt(url, "old"), toolCall{"echo", `{"text":"` + secret + `"}`}.request(), "Traceparent: 00-"+trace+
			"-00f067aa0ba902b7-01")
		if text := fmt.Sprint(spans.span(t, trace)); strings.Contains(text, secret) {
			t.Errorf("got %s, want no secret in the span", text)
		}
	})
}

func paramsOf(t *testing.T, message string) string {
	t.Helper()
	var m struct{ Params json.RawMessage }
	if err := json.Unmarshal([]byte(message), &m); err != nil {
		t.Fatal(err)
	}
	return string(m.Params)
}

// Without tracing, messages are unchanged.
func TestOperateTracingOff(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(child("old")))
	for _, params := range []string{`{"name":"echo","arguments":{"text":"x"}}`,
		`{"name":"echo","arguments":{},"_meta":{"traceparent":"` + clientTraceparent + `"}}`} {
		got := post(t, rpcAt(url, "old"), rpc("tools/call", params), "Traceparent: "+clientTraceparent)
		same(t, toolText(t, got.body), params)
	}
}

// dashboard has the parts of caddyfile_examples/grafana.json that the tests check.
type dashboard struct {
	ID            *int   `json:"id"`
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type string }
	}
	Panels []dashboardPanel
}

type dashboardPanel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int } `json:"gridPos"`
	Datasource struct{ Type, UID string }
	Targets    []struct {
		Expr       string
		Legend     string `json:"legendFormat"`
		Datasource struct{ Type, UID string }
	}
	FieldConfig struct {
		Defaults struct{ Unit string }
	} `json:"fieldConfig"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("../../../caddyfile_examples/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDashboardFitsAnyGrafana(t *testing.T) { // A51, A52
	isolate(t)
	d := readDashboard(t)
	if d.Title != "MCP gateway" || d.SchemaVersion < 39 {
		t.Errorf("got title %q, schema version %d", d.Title, d.SchemaVersion)
	}
	if d.ID != nil || d.UID != "" {
		t.Error("the dashboard is bound to one Grafana instance")
	}
	if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
		t.Errorf("got variables %v", v)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d is used twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s: lacks its data source, unit or queries", p.Title)
		}
		for _, target := range p.Targets {
			if target.Datasource != p.Datasource {
				t.Errorf("%s: got data source %v of a query", p.Title, target.Datasource)
			}
		}
	}
}

func TestDashboardPanelsDoNotOverlap(t *testing.T) {
	isolate(t)
	panels := readDashboard(t).Panels
	for i, a := range panels {
		position := a.GridPos
		if position.X < 0 || position.Y < 0 || position.W <= 0 || position.H <= 0 || position.X+position.W > 24 {
			t.Errorf("%s is outside of the grid: %v", a.Title, position)
		}
		for _, b := range panels[:i] {
			before := b.GridPos
			if position.X < before.X+before.W && before.X < position.X+position.W && position.Y < before.Y+before.H &&
				before.Y < position.Y+position.H {
				t.Errorf("%s and %s overlap", a.Title, b.Title)
			}
		}
	}
}

var (
	metricName   = regexp.MustCompile(`caddy_mcp_[a-z_]+`)
	matcherLabel = regexp.MustCompile(`[{,]([a-z_]+)(?:=~|!~|!=|=)"`)
	groupLabels  = regexp.MustCompile(`by \(([a-z_, ]+)\)`)
	legendLabel  = regexp.MustCompile(`{{([a-z_]+)}}`)
)

func TestDashboardQueriesExistingMetrics(t *testing.T) { // A51, A52
	isolate(t)
	metrics := registeredMetrics(t)
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			names := metricName.FindAllString(target.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s: no metric of the plugin in %s", p.Title, target.Expr)
			}
			var labels []string
			for _, match := range matcherLabel.FindAllStringSubmatch(target.Expr, -1) {
				labels = append(labels, match[1])
			}
			var groups []string
			for _, match := range groupLabels.FindAllStringSubmatch(target.Expr, -1) {
				groups = append(groups, strings.Split(match[1], ", ")...)
			}
			for _, name := range names {
				known, ok := metrics[name]
				if !ok {
					t.Errorf("%s: unknown metric %s", p.Title, name)
				}
				for _, label := range slices.Concat(labels, groups) {
					if ok && !slices.Contains(known, label) {
						t.Errorf("%s: %s has no label %s", p.Title, name, label)
					}
				}
			}
			for _, match := range legendLabel.FindAllStringSubmatch(target.Legend, -1) {
				if !slices.Contains(groups, match[1]) {
					t.Errorf("%s: the legend %q has a label that is not in the result of %s", p.Title, target.Legend, target.Expr)
				}
			}
		}
	}
}

// registeredMetrics returns the metrics of the modules and their labels, from the source: a
// registry does not list a metric that has not counted yet.
func registeredMetrics(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("../../../modules/*/metrics.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no metrics: %v", err)
	}
	files = append(files, "../../../modules/internal/toolresults/metrics.go")
	metrics := map[string][]string{}
	for _, file := range files {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(source, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				addMetric(metrics, call)
			}
			return true
		})
	}
	return metrics
}

// addMetric adds the metric of a call such as telemetry.NewCounter(name, help, labels...).
func addMetric(metrics map[string][]string, call *ast.CallExpr) {
	made, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	var arguments []string
	for _, argument := range call.Args {
		literal, ok := argument.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return
		}
		text, _ := strconv.Unquote(literal.Value)
		arguments = append(arguments, text)
	}
	if len(arguments) < 2 {
		return
	}
	name, labels := "caddy_mcp_"+arguments[0], arguments[2:]
	switch made.Sel.Name {
	case "NewCounter", "NewGauge":
		metrics[name] = labels
	case "NewHistogram":
		metrics[name+"_bucket"] = append([]string{"le"}, labels...)
		metrics[name+"_sum"], metrics[name+"_count"] = labels, labels
	}
}
