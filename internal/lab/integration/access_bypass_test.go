package integration

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// Who listens to one server does so by the rules of now (A30, A55, A56).
func TestAccessToStreamsOfOneServer(t *testing.T) {
	isolate(t)
	far := newRemoteServer(t, "tool")
	address := freeAddress(t)
	const another = "eve-0123456789AbCdEf"
	config := func(rules ...string) string {
		return site(address, gateway(append(restricted(rules...), far.line("far"))...))
	}
	for _, tt := range []struct {
		name, after string
		ends        bool
	}{
		{"A60 nothing is another", config() + site(freeAddress(t), "respond x"), false},
		{"A30 its token is another", strings.Replace(config(), eveToken, another, 1), true},
		{"A55 a resource is denied", config("deny resource:far::file:///secret/"), true},
		{"A56 something is redacted", config(keyPattern), true},
		{"A53 the server is denied", config("deny far::*"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			load(t, config())
			c := newSpeaker(t, mcpAt("http://"+address, "far"), false, canAll, closes, bearer(eveToken))
			before := far.Listeners()
			stream := c.listen(t)
			await.Until(t, "the gateway to listen", func() bool { return far.Listeners() == before+1 })
			load(t, tt.after)
			if tt.ends {
				stream.ended(t)
				await.Until(t, "the extra listeners to leave", func() bool { return far.Listeners() == before })
				return
			}
			far.Say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
			if m := stream.next(t); m.Method != "vendor/after" {
				t.Errorf("heard %s", m.Raw)
			}
			stream.HangUp()
			await.Until(t, "the extra listeners to leave", func() bool { return far.Listeners() == before })
		})
	}
}

// What was kept of a server that a client may not know any more is not for it either
// (A53).
func TestAccessToWhatWasKept(t *testing.T) {
	isolate(t)
	keeps := func(server string) string {
		w := newLenientServer(t, "read")
		w.Replies = map[string]string{"read": `"result":{"content":[{"type":"text","text":` + quote(strings.Repeat("kept by "+server+" ", 1000)) + `}]}`}
		return w.line(server)
	}
	alpha, beta := keeps("alpha"), keeps("beta")
	address := freeAddress(t)
	config := func(rules ...string) string {
		return site(address, gateway(append(restricted(rules...), block("mask 4000 2000 2000", "recover on"), alpha, beta)...))
	}
	for _, era := range clientEras {
		load(t, config())
		c := newSpeaker(t, joinedAt("http://"+address), era.modern, canAll, closes, bearer(eveToken))
		handles := map[string]string{"alpha": observe(t, c, "alpha", "read", `{}`), "beta": observe(t, c, "beta", "read", `{}`)}
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

// Who signs is the same with each request, however different these are (A77).
func TestAccessBySignatureIsOfOneClient(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	far := newRemoteServer(t, "tool")
	url := serve(t, gateway("separator __", signing, far.line("far")))
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"far__tool","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	for who, secret := range map[string]string{"alice": aliceSecret, "bob": bobSecret} {
		before := far.Count("initialize")
		for range 3 {
			got := post(t, joinedAt(url), message, acceptBoth, "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: far__tool",
				signedBy(who, secret, "POST", pathOf(t, joinedAt(url)), message))
			if got.StatusCode != 200 {
				t.Fatalf("%d %s", got.StatusCode, got.body)
			}
		}
		if met := far.Count("initialize") - before; met != 1 {
			t.Errorf("for %s the server was met %d times", who, met)
		}
	}
}

// The gauge of a child goes with its server (A52).
func TestOperateGaugeOfAChildThatIsGone(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	load(t, site(address, gateway(child("leaving"), child("staying"))))
	pidAt(t, mcpAt("http://"+address, "leaving"))
	pidAt(t, mcpAt("http://"+address, "staying"))
	if n, there := metrics(t)[sample("upstream_healthy", "leaving")]; !there || n != 1 {
		t.Fatalf("%v, there: %t", n, there)
	}
	load(t, site(address, gateway(child("staying"))))
	await.Until(t, "the gauge to go", func() bool {
		_, there := metrics(t)[sample("upstream_healthy", "leaving")]
		return !there
	})
	pidAt(t, mcpAt("http://"+address, "staying"))
	if n := metrics(t)[sample("upstream_healthy", "staying")]; n != 1 {
		t.Errorf("%v of the other", n)
	}
}
