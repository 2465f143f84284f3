package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// prunerServer is a pruner as a server of a gateway.
var prunerServer = block("server pruner", "mask off", "mcp_pruner")

// A prunerDoor is a way to a pruner: how a tool is called there.
type prunerDoor struct {
	name string
	call func(t *testing.T, tool, arguments string, headers ...string) (status int, message string)
}

// prunerDoors are the ways to a pruner that is the server of a gateway at url.
func prunerDoors(url string) (doors []prunerDoor) {
	for _, era := range clientEras {
		for name, at := range map[string]string{"joined": joinedAt(url), "alone": mcpAt(url, "pruner"), "plain": rpcAt(url, "pruner")} {
			prefix := ""
			if name == "joined" {
				prefix = "pruner__"
			}
			doors = append(doors, prunerDoor{name + ", " + era.name, func(t *testing.T, tool, arguments string, headers ...string) (int, string) {
				t.Helper()
				c := &speaker{&mcpclient.Client{URL: at, Modern: era.modern, Capabilities: `{}`, Headers: headers, HTTP: lasting}}
				if name == "joined" {
					c = newSpeaker(t, at, era.modern, `{}`, headers...)
				}
				got := c.ask(t, "tools/call", `{"name":`+quote(prefix+tool)+`,"arguments":`+arguments+`}`)
				return got.status, got.answer.Raw
			}})
		}
	}
	return doors
}

func TestPrunerInGateway(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", prunerServer, block("server sample", "mcp_sample")))
	for i, door := range prunerDoors(url) {
		t.Run(door.name, func(t *testing.T) {
			// More than masks let pass, if there were one.
			p := prunable{text: fullOf(300), goal: fmt.Sprintf("door %d", i), annotate: true}
			status, message := door.call(t, "prune_text", p.arguments())
			if status != 200 {
				t.Fatalf("%d %.300s", status, message)
			}
			got := payload[pruned](t, message)
			p.judge(t, got)
			if len(got.Annotations) == 0 || strings.Contains(message, "KIMI_PROXY_OBSERVATION_MASKED") {
				t.Fatalf("%+v", got.Stats)
			}
			lines := strings.Split(p.text, "\n")
			for _, tool := range []string{"recover_text", "recover_range"} {
				first := got.Annotations[0]
				_, message := door.call(t, tool, recovering(got.PruneID, false, first.Start, first.End))
				if tool == "recover_range" && strings.HasPrefix(door.name, "joined") {
					continue // it is not listed, and what is not cannot be routed
				}
				same(t, payload[recoveredLines](t, message).Text, strings.Join(lines[first.Start-1:first.End], "\n"))
			}
			_, message = door.call(t, "recover_text", recovering("prn_nope", false, 1, 1))
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32004 || m.Error.Message != "prune_id_not_found" || !strings.Contains(string(m.Error.Data), `"prune_id":"prn_nope"`) {
				t.Errorf("P45 %s", message)
			}
			_, message = door.call(t, "recover_text", recovering(got.PruneID, false, 5, 4))
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32005 || m.Error.Message != "invalid_range" {
				t.Errorf("P46 %s", message)
			}
			_, message = door.call(t, "prune_text", `{}`)
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32602 {
				t.Errorf("P13 %s", message)
			}
			_, message = door.call(t, "health", `{}`)
			if health := payload[map[string]any](t, message); health["status"] != "healthy" {
				t.Errorf("P7 %v", health)
			}
		})
	}
	t.Run("the names of its tools", func(t *testing.T) {
		for _, era := range clientEras {
			names := map[string]bool{}
			for _, name := range toolsOf(t, newSpeaker(t, joinedAt(url), era.modern, `{}`)) {
				names[name] = true
			}
			for _, name := range []string{"pruner__prune_text", "pruner__recover_text", "pruner__health", "sample__read_log"} {
				if !names[name] {
					t.Errorf("%s: %s is missing among %v", era.name, name, names)
				}
			}
		}
	})
	t.Run("the plain door without a handshake", func(t *testing.T) {
		id := pruneBy(t, rpcAt(url, "pruner"), prunable{text: numbered(200)}).PruneID
		if got := recoverLines(t, rpcAt(url, "pruner"), id, true, 200, 200).Text; got != "200│ ligne 200" {
			t.Errorf("got %q, want %q", got, "200│ ligne 200")
		}
	})
	t.Run("all doors lead to one store", func(t *testing.T) {
		id := pruneBy(t, rpcAt(url, "pruner"), prunable{text: numbered(201)}).PruneID
		for _, door := range prunerDoors(url) {
			_, message := door.call(t, "recover_text", recovering(id, false, 201, 201))
			if got := payload[recoveredLines](t, message).Text; got != "ligne 201" {
				t.Errorf("%s: %s", door.name, got)
			}
		}
	})
}

// What one user of a gateway has pruned, another cannot read.
func TestPrunerInGatewayIsTheClientsOwn(t *testing.T) {
	isolate(t)
	url := serve(t, accounts, gateway("separator __", prunerServer))
	doors := prunerDoors(url)
	for i, door := range doors {
		t.Run(door.name, func(t *testing.T) {
			p := prunable{text: numbered(300), goal: fmt.Sprintf("own %d", i)}
			_, message := door.call(t, "prune_text", p.arguments(), as("alice"))
			id := payload[pruned](t, message).PruneID
			ask := recovering(id, false, 300, 300)
			for _, other := range doors {
				_, message := other.call(t, "recover_text", ask, as("bob"))
				if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32004 {
					t.Errorf("bob reads through %s: %.300s", other.name, message)
				}
				_, message = other.call(t, "recover_text", ask, as("alice"))
				if got := payload[recoveredLines](t, message).Text; got != "ligne 300" {
					t.Errorf("alice reads %q through %s", got, other.name)
				}
			}
		})
	}
}

// Clients of both eras at a pruner that stands alone.
func TestPrunerStreamableHTTP(t *testing.T) {
	isolate(t)
	url := serve(t, pruner())
	for _, path := range []string{"/mcp", "/rpc"} {
		modern := &speaker{&mcpclient.Client{URL: url + path, Modern: true, Capabilities: `{}`, HTTP: lasting}}
		t.Run("P79 the modern era at "+path, func(t *testing.T) {
			got := modern.ask(t, "server/discover", `{}`)
			var discovered struct {
				ResultType        string
				SupportedVersions []string
				Capabilities      map[string]any
				Meta              map[string]map[string]string `json:"_meta"`
			}
			if err := json.Unmarshal(got.answer.Result, &discovered); err != nil || got.status != 200 || discovered.ResultType != "complete" || discovered.Capabilities["tools"] == nil ||
				!strings.Contains(fmt.Sprint(discovered.SupportedVersions), "2026-07-28") || discovered.Meta["io.modelcontextprotocol/serverInfo"]["name"] != "mcp-pruner" {
				t.Errorf("%v: %d %s", err, got.status, got.answer.Raw)
			}
			got = modern.ask(t, "tools/list", `{}`)
			if !strings.Contains(got.answer.Raw, `"ttlMs":`) || !strings.Contains(got.answer.Raw, `"cacheScope":`) || !strings.Contains(got.answer.Raw, `"resultType":"complete"`) {
				t.Errorf("%.300s", got.answer.Raw)
			}
			p := prunable{text: numbered(300)}
			got = modern.ask(t, "tools/call", `{"name":"prune_text","arguments":`+p.arguments()+`}`)
			answered := payload[pruned](t, got.answer.Raw)
			p.judge(t, answered)
			got = modern.ask(t, "tools/call", `{"name":"recover_text","arguments":`+recovering(answered.PruneID, false, 1, 1)+`}`)
			if payload[recoveredLines](t, got.answer.Raw).Text != "ligne 1" || !strings.Contains(got.answer.Raw, `"resultType":"complete"`) {
				t.Error(got.answer.Raw)
			}
			got = modern.ask(t, "tools/call", `{"name":"recover_text","arguments":`+recovering("prn_nope", false, 1, 1)+`}`)
			if got.status != 200 || got.answer.Error == nil || got.answer.Error.Code != -32004 {
				t.Errorf("P45 %d %s", got.status, got.answer.Raw)
			}
			got = modern.ask(t, "foo", `{}`)
			if got.status != 404 || got.answer.Error == nil || got.answer.Error.Code != -32601 {
				t.Errorf("P9 %d %s", got.status, got.answer.Raw)
			}
			got = modern.ask(t, "tools/list", `{}`, "Mcp-Method: tools/call")
			if got.status != 400 || got.answer.Error == nil || got.answer.Error.Code != -32020 {
				t.Errorf("a header that says another method: %d %s", got.status, got.answer.Raw)
			}
		})
	}
	t.Run("P79 a revision that is not there yet", func(t *testing.T) {
		got := post(t, url+"/mcp", rpc("tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2030-01-01","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}`),
			acceptBoth, "Mcp-Protocol-Version: 2030-01-01", "Mcp-Method: tools/list")
		if got.StatusCode != 400 || !strings.Contains(got.body, "-32022") || !strings.Contains(got.body, "2026-07-28") {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	})
	t.Run("P79 the legacy era has no session", func(t *testing.T) {
		for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
			got := post(t, url+"/mcp", rpc("initialize", `{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`), acceptBoth)
			if got.StatusCode != 200 || !strings.Contains(got.body, `"protocolVersion":"`+version+`"`) || got.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%d %v %s", got.StatusCode, got.Header, got.body)
			}
			got = post(t, url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, acceptBoth, "Mcp-Protocol-Version: "+version)
			if got.StatusCode != 202 || got.body != "" {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
			pruneBy(t, url+"/mcp", prunable{text: numbered(100)}, acceptBoth, "Mcp-Protocol-Version: "+version)
		}
		failsWith(t, url+"/mcp", rpc("foo", `{}`), -32601, acceptBoth) // P9: 404 would tell a client of that era that its session is over
		got := post(t, url+"/mcp", "{", acceptBoth)
		if got.StatusCode != 400 || !strings.Contains(got.body, "-32700") {
			t.Errorf("P10 %d %s", got.StatusCode, got.body)
		}
	})
}

// askedBySDK has the official TypeScript SDK ask. Before what was seen it prints that it
// does not ask for what a server does not offer, such as prompts.
func askedBySDK(t *testing.T, at, era string, requests ...peerRequest) (saw joinedSaw) {
	t.Helper()
	asked, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	cmd := peer(t, "joined.mjs", at, era, "peer", "mute")
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

// TestPrunerPeers has the official clients prune, directly and through a gateway. They
// check structuredContent against the outputSchema by themselves (P79).
func TestPrunerPeers(t *testing.T) {
	isolate(t)
	url := serve(t, block("handle /alone/*", pruner()), gateway("separator __", prunerServer))
	p := prunable{text: fullOf(200), annotate: true}
	for _, place := range []struct{ name, at, prefix string }{
		{"alone", url + "/alone/mcp", ""}, {"a server of a gateway", mcpAt(url, "pruner"), ""}, {"joined", joinedAt(url), "pruner__"},
	} {
		for era, version := range map[string]string{"v1": "2025-11-25", "legacy": "2025-11-25", "auto": "2026-07-28", "modern": "2026-07-28"} {
			t.Run("P79 "+place.name+", TypeScript SDK "+era, func(t *testing.T) {
				call := func(tool, arguments string) peerRequest {
					return peerRequest{"tools/call", json.RawMessage(`{"name":` + quote(place.prefix+tool) + `,"arguments":` + arguments + `}`)}
				}
				id := pruneBy(t, url+"/alone/rpc", p).PruneID // the store is the same
				saw := askedBySDK(t, place.at, era, call("prune_text", p.arguments()), call("recover_text", recovering(id, true, 7, 8)), call("health", `{}`), call("recover_text", recovering("prn_nope", true, 1, 1)))
				if saw.Version != version || len(saw.Tools) != 3 || len(saw.Prompts)+len(saw.Resources)+len(saw.Templates) != 0 || len(saw.Requests) != 4 {
					t.Fatalf("P6 %+v", saw)
				}
				for i, request := range saw.Requests[:3] {
					if request.Error != nil {
						t.Fatalf("request %d: %s", i, request.Error.Message)
					}
				}
				p.judge(t, payload[pruned](t, `{"result":`+string(saw.Requests[0].Result)+`}`))
				lines := strings.Split(p.text, "\n")
				same(t, payload[recoveredLines](t, `{"result":`+string(saw.Requests[1].Result)+`}`).Text, "7│ "+lines[6]+"\n8│ "+lines[7])
				if failure := saw.Requests[3].Error; failure == nil || !strings.Contains(failure.Message, "prune_id_not_found") {
					t.Errorf("P45 %+v", failure)
				}
			})
		}
	}
	for _, era := range []string{"legacy", "modern", "auto"} {
		t.Run("P79 Inspector "+era, func(t *testing.T) {
			small := prunable{text: numbered(100)}
			saw := callWithInspector(t, peerCalls{endpoint: url + "/alone/mcp", era: era, calls: []toolCall{{"prune_text", small.arguments()}}})
			if len(saw.Tools) != 3 || saw.Calls[0].Result.IsError {
				t.Fatalf("%+v", saw)
			}
			var got pruned
			if err := json.Unmarshal([]byte(saw.Calls[0].Result.text()), &got); err != nil {
				t.Fatal(err)
			}
			small.judge(t, got)
		})
	}
	t.Run("P79 Go SDK", func(t *testing.T) {
		saw := callWithGo(buildPrograms(t))(t, peerCalls{endpoint: url + "/alone/mcp", calls: []toolCall{{"prune_text", p.arguments()}, {"health", `{}`}}})
		var got pruned
		if err := json.Unmarshal([]byte(saw.Calls[0].Result.text()), &got); err != nil || len(saw.Tools) != 3 {
			t.Fatalf("%v: %+v", err, saw)
		}
		p.judge(t, got)
	})
}
