package integration

import (
	"context"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

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
