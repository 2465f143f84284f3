package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// prunerServer configures a pruner as a server of a gateway.
var prunerServer = block("server pruner", "mask off", "mcp_pruner")

// A prunerEndpoint is an endpoint of a pruner, with a function that calls a tool there.
type prunerEndpoint struct {
	name string
	call func(t *testing.T, tool, arguments string, headers ...string) (status int, message string)
}

// prunerEndpoints returns the endpoints of a pruner that is a server of the gateway at url.
func prunerEndpoints(url string) (endpoints []prunerEndpoint) {
	for _, era := range clientEras {
		for name, endpoint := range map[string]string{"joined": joinedAt(url), "alone": mcpAt(url, "pruner"),
			"plain": rpcAt(url, "pruner")} {
			prefix := ""
			if name == "joined" {
				prefix = "pruner__"
			}
			endpoints = append(endpoints, prunerEndpoint{name + ", " + era.name, func(t *testing.T, tool, arguments string,
				headers ...string) (int, string) {
				t.Helper()
				c := &testClient{&mcpclient.Client{URL: endpoint, Modern: era.modern, Capabilities: `{}`, Headers: headers,
					HTTP: streamClient}}
				if name == "joined" {
					c = newTestClient(t, endpoint, era.modern, `{}`, headers...)
				}
				got := c.ask(t, "tools/call", `{"name":`+quote(prefix+tool)+`,"arguments":`+arguments+`}`)
				return got.status, got.answer.Raw
			}})
		}
	}
	return endpoints
}

func TestPrunerInGateway(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", prunerServer, block("server sample", "mcp_sample")))
	for i, endpoint := range prunerEndpoints(url) {
		t.Run(endpoint.name, func(t *testing.T) {
			// A default mask would shorten this text.
			p := prunable{text: unicodeText(300), goal: fmt.Sprintf("endpoint %d", i), annotate: true}
			status, message := endpoint.call(t, "prune_text", p.arguments())
			if status != 200 {
				t.Fatalf("got %d %.300s", status, message)
			}
			got := payload[pruned](t, message)
			p.check(t, got)
			if len(got.Annotations) == 0 || strings.Contains(message, "KIMI_PROXY_OBSERVATION_MASKED") {
				t.Fatalf("got %+v", got.Stats)
			}
			lines := strings.Split(p.text, "\n")
			for _, tool := range []string{"recover_text", "recover_range"} {
				first := got.Annotations[0]
				_, message := endpoint.call(t, tool, recoverArguments(got.PruneID, false, first.Start, first.End))
				if tool == "recover_range" && strings.HasPrefix(endpoint.name, "joined") {
					continue // it is not listed, so the aggregate cannot route it
				}
				same(t, payload[recoveredLines](t, message).Text, strings.Join(lines[first.Start-1:first.End], "\n"))
			}
			_, message = endpoint.call(t, "recover_text", recoverArguments("prn_nope", false, 1, 1))
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32004 ||
				m.Error.Message != "prune_id_not_found" || !strings.Contains(string(m.Error.Data), `"prune_id":"prn_nope"`) {
				t.Errorf("P45 %s", message)
			}
			_, message = endpoint.call(t, "recover_text", recoverArguments(got.PruneID, false, 5, 4))
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32005 || m.Error.Message != "invalid_range" {
				t.Errorf("P46 %s", message)
			}
			_, message = endpoint.call(t, "prune_text", `{}`)
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32602 {
				t.Errorf("P13 %s", message)
			}
			_, message = endpoint.call(t, "health", `{}`)
			if health := payload[map[string]any](t, message); health["status"] != "healthy" {
				t.Errorf("P7 got %v", health)
			}
		})
	}
	t.Run("tool names", func(t *testing.T) {
		for _, era := range clientEras {
			names := map[string]bool{}
			for _, name := range toolNames(t, newTestClient(t, joinedAt(url), era.modern, `{}`)) {
				names[name] = true
			}
			for _, name := range []string{"pruner__prune_text", "pruner__recover_text", "pruner__health", "sample__read_log"} {
				if !names[name] {
					t.Errorf("%s: %s is missing in %v", era.name, name, names)
				}
			}
		}
	})
	t.Run("the RPC endpoint without a handshake", func(t *testing.T) {
		id := pruneText(t, rpcAt(url, "pruner"), prunable{text: numbered(200)}).PruneID
		if got := recoverLines(t, rpcAt(url, "pruner"), id, true, 200, 200).Text; got != "200│ ligne 200" {
			t.Errorf("got %q, want %q", got, "200│ ligne 200")
		}
	})
	t.Run("all endpoints share one store", func(t *testing.T) {
		id := pruneText(t, rpcAt(url, "pruner"), prunable{text: numbered(201)}).PruneID
		for _, endpoint := range prunerEndpoints(url) {
			_, message := endpoint.call(t, "recover_text", recoverArguments(id, false, 201, 201))
			if got := payload[recoveredLines](t, message).Text; got != "ligne 201" {
				t.Errorf("%s: %s", endpoint.name, got)
			}
		}
	})
}

// A client cannot read the originals of another client.
func TestPrunerInGatewayIsTheClientsOwn(t *testing.T) {
	isolate(t)
	url := serve(t, basicAuthAccounts, gateway("separator __", prunerServer))
	endpoints := prunerEndpoints(url)
	for i, endpoint := range endpoints {
		t.Run(endpoint.name, func(t *testing.T) {
			p := prunable{text: numbered(300), goal: fmt.Sprintf("own %d", i)}
			_, message := endpoint.call(t, "prune_text", p.arguments(), basicAuthHeader("alice"))
			id := payload[pruned](t, message).PruneID
			ask := recoverArguments(id, false, 300, 300)
			for _, other := range endpoints {
				_, message := other.call(t, "recover_text", ask, basicAuthHeader("bob"))
				if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32004 {
					t.Errorf("bob read at %s: %.300s", other.name, message)
				}
				_, message = other.call(t, "recover_text", ask, basicAuthHeader("alice"))
				if got := payload[recoveredLines](t, message).Text; got != "ligne 300" {
					t.Errorf("alice read %q at %s", got, other.name)
				}
			}
		})
	}
}

// Clients of both eras use a standalone pruner.
func TestPrunerStreamableHTTP(t *testing.T) {
	isolate(t)
	url := serve(t, pruner())
	for _, path := range []string{"/mcp", "/rpc"} {
		modern := &testClient{&mcpclient.Client{URL: url + path, Modern: true, Capabilities: `{}`, HTTP: streamClient}}
		t.Run("P79 the modern era at "+path, func(t *testing.T) {
			got := modern.ask(t, "server/discover", `{}`)
			var discovered struct {
				ResultType        string
				SupportedVersions []string
				Capabilities      map[string]any
				Meta              map[string]map[string]string `json:"_meta"`
			}
			if err := json.Unmarshal(got.answer.Result, &discovered); err != nil || got.status != 200 ||
				discovered.ResultType != "complete" || discovered.Capabilities["tools"] == nil ||
				!strings.Contains(fmt.Sprint(discovered.SupportedVersions), "2026-07-28") ||
				discovered.Meta["io.modelcontextprotocol/serverInfo"]["name"] != "mcp-pruner" {
				t.Errorf("%v: %d %s", err, got.status, got.answer.Raw)
			}
			got = modern.ask(t, "tools/list", `{}`)
			if !strings.Contains(got.answer.Raw, `"ttlMs":`) || !strings.Contains(got.answer.Raw, `"cacheScope":`) ||
				!strings.Contains(got.answer.Raw, `"resultType":"complete"`) {
				t.Errorf("got %.300s", got.answer.Raw)
			}
			p := prunable{text: numbered(300)}
			got = modern.ask(t, "tools/call", `{"name":"prune_text","arguments":`+p.arguments()+`}`)
			answered := payload[pruned](t, got.answer.Raw)
			p.check(t, answered)
			got = modern.ask(t, "tools/call", `{"name":"recover_text","arguments":`+recoverArguments(answered.PruneID, false, 1,
				1)+`}`)
			if payload[recoveredLines](t, got.answer.Raw).Text != "ligne 1" || !strings.Contains(got.answer.Raw,
				`"resultType":"complete"`) {
				t.Error(got.answer.Raw)
			}
			got = modern.ask(t, "tools/call", `{"name":"recover_text","arguments":`+recoverArguments("prn_nope", false, 1, 1)+
				`}`)
			if got.status != 200 || got.answer.Error == nil || got.answer.Error.Code != -32004 {
				t.Errorf("P45 got %d %s", got.status, got.answer.Raw)
			}
			got = modern.ask(t, "foo", `{}`)
			if got.status != 404 || got.answer.Error == nil || got.answer.Error.Code != -32601 {
				t.Errorf("P9 got %d %s", got.status, got.answer.Raw)
			}
			got = modern.ask(t, "tools/list", `{}`, "Mcp-Method: tools/call")
			if got.status != 400 || got.answer.Error == nil || got.answer.Error.Code != -32020 {
				t.Errorf("a header with another method: %d %s", got.status, got.answer.Raw)
			}
		})
	}
	t.Run("P79 an unknown protocol version", func(t *testing.T) {
		got := post(t, url+"/mcp", rpc("tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2030-01-01",`+
			`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}`),
			acceptBoth, "Mcp-Protocol-Version: 2030-01-01", "Mcp-Method: tools/list")
		if got.StatusCode != 400 || !strings.Contains(got.body, "-32022") || !strings.Contains(got.body, "2026-07-28") {
			t.Errorf("got %d %s", got.StatusCode, got.body)
		}
	})
	t.Run("P79 legacy clients get no session", func(t *testing.T) {
		for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
			got := post(t, url+"/mcp", rpc("initialize", `{"protocolVersion":"`+version+
				`","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`), acceptBoth)
			if got.StatusCode != 200 || !strings.Contains(got.body, `"protocolVersion":"`+version+`"`) ||
				got.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("got %d %v %s", got.StatusCode, got.Header, got.body)
			}
			got = post(t, url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, acceptBoth,
				"Mcp-Protocol-Version: "+version)
			if got.StatusCode != 202 || got.body != "" {
				t.Errorf("got %d %s", got.StatusCode, got.body)
			}
			pruneText(t, url+"/mcp", prunable{text: numbered(100)}, acceptBoth, "Mcp-Protocol-Version: "+version)
		}
		// P9: 404 would mean to a legacy client that its session has ended
		failsWith(t, url+"/mcp", rpc("foo", `{}`), -32601, acceptBoth)
		got := post(t, url+"/mcp", "{", acceptBoth)
		if got.StatusCode != 400 || !strings.Contains(got.body, "-32700") {
			t.Errorf("P10 got %d %s", got.StatusCode, got.body)
		}
	})
}

// askWithSDK sends requests with the official TypeScript SDK. The SDK prints warnings about
// capabilities that the server lacks, such as prompts, before the results.
func askWithSDK(t *testing.T, endpoint, era string, requests ...peerRequest) (saw joinedResult) {
	t.Helper()
	asked, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	cmd := peer(t, "joined.mjs", endpoint, era, "peer", "mute")
	var complaints strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(asked)), &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %.2000s", err, &complaints)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &saw); err != nil {
		t.Fatalf("%v: %.2000s", err, out)
	}
	return saw
}

// TestPrunerPeers prunes with the official clients, directly and through a gateway. They
// validate structuredContent against the outputSchema (P79).
func TestPrunerPeers(t *testing.T) {
	isolate(t)
	url := serve(t, block("handle /alone/*", pruner()), gateway("separator __", prunerServer))
	p := prunable{text: unicodeText(200), annotate: true}
	for _, place := range []struct{ name, at, prefix string }{
		{"alone", url + "/alone/mcp", ""}, {"a server of a gateway", mcpAt(url, "pruner"), ""},
		{"joined", joinedAt(url), "pruner__"},
	} {
		for era, version := range map[string]string{"v1": "2025-11-25", "legacy": "2025-11-25", "auto": "2026-07-28",
			"modern": "2026-07-28"} {
			t.Run("P79 "+place.name+", TypeScript SDK "+era, func(t *testing.T) {
				call := func(tool, arguments string) peerRequest {
					return peerRequest{"tools/call", json.RawMessage(`{"name":` + quote(place.prefix+tool) + `,"arguments":` +
						arguments + `}`)}
				}
				id := pruneText(t, url+"/alone/rpc", p).PruneID // the store is the same
				saw := askWithSDK(t, place.at, era, call("prune_text", p.arguments()),
					call("recover_text", recoverArguments(id, true, 7, 8)), call("health", `{}`),
					call("recover_text", recoverArguments("prn_nope", true, 1, 1)))
				if saw.Version != version || len(saw.Tools) != 3 || len(saw.Prompts)+len(saw.Resources)+len(saw.Templates) != 0 ||
					len(saw.Requests) != 4 {
					t.Fatalf("P6 got %+v", saw)
				}
				for i, request := range saw.Requests[:3] {
					if request.Error != nil {
						t.Fatalf("request %d: %s", i, request.Error.Message)
					}
				}
				p.check(t, payload[pruned](t, `{"result":`+string(saw.Requests[0].Result)+`}`))
				lines := strings.Split(p.text, "\n")
				same(t, payload[recoveredLines](t, `{"result":`+string(saw.Requests[1].Result)+`}`).Text, "7│ "+lines[6]+"\n8│ "+
					lines[7])
				if failure := saw.Requests[3].Error; failure == nil || !strings.Contains(failure.Message, "prune_id_not_found") {
					t.Errorf("P45 %+v", failure)
				}
			})
		}
	}
	for _, era := range []string{"legacy", "modern", "auto"} {
		t.Run("P79 Inspector "+era, func(t *testing.T) {
			small := prunable{text: numbered(100)}
			saw := callWithInspector(t, peerCalls{endpoint: url + "/alone/mcp", era: era,
				calls: []toolCall{{"prune_text", small.arguments()}}})
			if len(saw.Tools) != 3 || saw.Calls[0].Result.IsError {
				t.Fatalf("got %+v", saw)
			}
			var got pruned
			if err := json.Unmarshal([]byte(saw.Calls[0].Result.text()), &got); err != nil {
				t.Fatal(err)
			}
			small.check(t, got)
		})
	}
	t.Run("P79 Go SDK", func(t *testing.T) {
		saw := callWithGo(buildPrograms(t))(t, peerCalls{endpoint: url + "/alone/mcp",
			calls: []toolCall{{"prune_text", p.arguments()}, {"health", `{}`}}})
		var got pruned
		if err := json.Unmarshal([]byte(saw.Calls[0].Result.text()), &got); err != nil || len(saw.Tools) != 3 {
			t.Fatalf("%v: %+v", err, saw)
		}
		p.check(t, got)
	})
}
