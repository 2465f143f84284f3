package integration

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A stream of one server follows the current rules (A30, A55, A56).
func TestAccessToStreamsOfOneServer(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	address := freeAddress(t)
	const another = "eve-0123456789AbCdEf"
	config := func(rules ...string) string {
		return site(address, gateway(append(rulesForEve(rules...), remote.line("far"))...))
	}
	for _, tt := range []struct {
		name, after string
		ends        bool
	}{
		{"A60 nothing changes", config() + site(freeAddress(t), "respond x"), false},
		{"A30 the token changes", strings.Replace(config(), eveToken, another, 1), true},
		{"A55 a resource is denied", config("deny resource:far::file:///secret/"), true},
		{"A56 something is redacted", config(keyPattern), true},
		{"A53 the server is denied", config("deny far::*"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			load(t, config())
			c := newTestClient(t, mcpAt("http://"+address, "far"), false, fullCapabilities, connectionClose, bearer(eveToken))
			before := remote.Listeners()
			stream := c.listen(t)
			await.Until(t, "the gateway to subscribe", func() bool { return remote.Listeners() == before+1 })
			load(t, tt.after)
			if tt.ends {
				stream.awaitEnd(t)
				await.Until(t, "the extra listeners to leave", func() bool { return remote.Listeners() == before })
				return
			}
			remote.Say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
			if m := stream.next(t); m.Method != "vendor/after" {
				t.Errorf("got %s", m.Raw)
			}
			stream.Cancel()
			await.Until(t, "the extra listeners to leave", func() bool { return remote.Listeners() == before })
		})
	}
}

// Cached data of a server is not sent to clients that lost access to it (A53).
func TestAccessToCachedData(t *testing.T) {
	isolate(t)
	keeps := func(server string) string {
		w := newLenientServer(t, "read")
		w.Replies = map[string]string{"read": `"result":{"content":[{"type":"text","text":` +
			quote(strings.Repeat("kept by "+server+" ", 1000)) + `}]}`}
		return w.line(server)
	}
	alpha, beta := keeps("alpha"), keeps("beta")
	address := freeAddress(t)
	config := func(rules ...string) string {
		return site(address, gateway(append(rulesForEve(rules...), block("mask 4000 2000 2000", "recover on"), alpha,
			beta)...))
	}
	for _, era := range clientEras {
		load(t, config())
		c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities, connectionClose, bearer(eveToken))
		handles := map[string]string{"alpha": callMasked(t, c, "alpha", "read", `{}`), "beta": callMasked(t, c, "beta",
			"read", `{}`)}
		load(t, config("deny alpha::*"))
		for of, handle := range handles {
			t.Run("A53 "+era.name+" of "+of, func(t *testing.T) {
				for _, got := range []string{
					c.ask(t, "tools/call", `{"name":"recover_observation","arguments":{"id":"`+handle+`"}}`).answer.Raw,
					c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`).answer.Raw,
				} {
					if strings.Contains(got, "kept by") != (of == "beta") {
						t.Errorf("got %.300s", got)
					}
				}
			})
		}
	}
}

// A signing client keeps one identity over all its requests (A77).
func TestAccessBySignatureIsOneIdentity(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	remote := newRemoteServer(t, "tool")
	url := serve(t, gateway("separator __", hmacAuth, remote.line("far")))
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"far__tool","arguments":{},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	for name, secret := range map[string]string{"alice": aliceSecret, "bob": bobSecret} {
		before := remote.Count("initialize")
		for range 3 {
			got := post(t, joinedAt(url), message, acceptBoth, "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call",
				"Mcp-Name: far__tool",
				signedHeader(name, secret, "POST", pathOf(t, joinedAt(url)), message))
			if got.StatusCode != 200 {
				t.Fatalf("got %d %s", got.StatusCode, got.body)
			}
		}
		if handshakes := remote.Count("initialize") - before; handshakes != 1 {
			t.Errorf("the server got %[2]d handshakes for %[1]s", name, handshakes)
		}
	}
}

// The gauge of a child is removed with its server (A52).
func TestOperateGaugeOfRemovedServer(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	load(t, site(address, gateway(child("leaving"), child("staying"))))
	pidAt(t, mcpAt("http://"+address, "leaving"))
	pidAt(t, mcpAt("http://"+address, "staying"))
	if n, exists := metrics(t)[serverMetric("upstream_healthy", "leaving")]; !exists || n != 1 {
		t.Fatalf("got %v, present: %t", n, exists)
	}
	load(t, site(address, gateway(child("staying"))))
	await.Until(t, "the gauge to go", func() bool {
		_, exists := metrics(t)[serverMetric("upstream_healthy", "leaving")]
		return !exists
	})
	pidAt(t, mcpAt("http://"+address, "staying"))
	if n := metrics(t)[serverMetric("upstream_healthy", "staying")]; n != 1 {
		t.Errorf("got %v for the other server", n)
	}
}
