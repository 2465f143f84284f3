package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// The limits of these tests are per hour, so no test regains quota while it runs.

// expectLimited fails the test unless the request was refused as rate limited, with a Retry-After
// of at most within.
func expectLimited(t *testing.T, what string, got reply, within time.Duration) {
	t.Helper()
	if got.status != 429 || got.answer.Error == nil || got.answer.Error.Message != "Rate limit exceeded" ||
		!strings.Contains(string(got.answer.Error.Data), `"code":"rate_limited"`) {
		t.Errorf("%s: %d %.300s\nwant 429 rate_limited", what, got.status, got.answer.Raw)
	}
	after, err := strconv.Atoi(got.header.Get("Retry-After"))
	if err != nil || after < 1 || time.Duration(after)*time.Second > within {
		t.Errorf("%s: Retry-After %q, want from 1 to %v", what, got.header.Get("Retry-After"), within.Seconds())
	}
}

// countUntilRefused makes requests until one is refused, and returns how many succeeded.
func countUntilRefused(t *testing.T, ask func() int) (n int) {
	t.Helper()
	for ; n < 1000; n++ {
		switch status := ask(); status {
		case 200:
		case 429:
			return n
		default:
			t.Fatalf("status %d", status)
		}
	}
	t.Fatal("no request was refused")
	return n
}

// remainingPings returns how many pings the client with these headers has left.
func remainingPings(t *testing.T, c *http.Client, endpoint string, headers ...string) int {
	t.Helper()
	return countUntilRefused(t, func() int {
		return send(t, c, "POST", endpoint, rpc("ping", `{}`), headers...).StatusCode
	})
}

func TestAccessWithinLimits(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	for _, era := range clientEras {
		t.Run("A32 the sixth request exceeds a limit of five at /mcp of a "+era.name, func(t *testing.T) {
			url := serve(t, gateway("separator __", "name "+strings.ReplaceAll(era.name, " ", "-"), "rate 5/1h",
				server.line("alpha")))
			method := "ping"
			if era.modern {
				method = "prompts/list" // the modern era has no ping
			}
			for range 3 { // handshakes do not count
				c := newTestClient(t, joinedAt(url), era.modern, `{}`)
				if era.modern {
					expectAllowed(t, "server/discover", c.ask(t, "server/discover", `{}`))
				}
			}
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			for range 5 {
				expectAllowed(t, method, c.ask(t, method, `{}`))
			}
			before := server.Count()
			expectLimited(t, method, c.ask(t, method, `{}`), 12*time.Minute)
			expectLimited(t, "a call", c.ask(t, "tools/call", callOf("alpha", "echo", `{}`)), 12*time.Minute)
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	for _, path := range []string{"/mcp/{server}", "/rpc"} {
		t.Run("A32 the sixth request exceeds a limit of five at "+path, func(t *testing.T) {
			url := serve(t, gateway("name "+strconv.Quote(path), "rate 5/1h", server.line("alpha")))
			endpoint := mcpAt(url, "alpha")
			if path == "/rpc" {
				endpoint = rpcAt(url, "alpha")
			}
			for range 3 {
				if got := post(t, endpoint, rpc("initialize", `{`+initParams+`}`), acceptBoth); got.StatusCode != 200 {
					t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
				}
			}
			for range 5 {
				same(t, post(t, endpoint, rpc("ping", `{}`)).body, result(`{}`))
			}
			before := server.Count()
			got := post(t, endpoint, rpc("ping", `{}`))
			expectRefused(t, got, 429)
			if after, err := strconv.Atoi(got.Header.Get("Retry-After")); err != nil || after < 1 || after > 12*60 {
				t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
			}
			if gatewayErrorOf(t, got).ID != "1" {
				t.Errorf("the id is lost: %s", got.body)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	t.Run("A32 all endpoints share a limit", func(t *testing.T) {
		url := serve(t, gateway("name ways", "rate 6/1h", server.line("alpha")))
		c := newTestClient(t, joinedAt(url), false, `{}`)
		for range 2 {
			expectAllowed(t, "ping", c.ask(t, "ping", `{}`))
			for _, endpoint := range endpointsOf(url, "alpha")[1:] {
				same(t, post(t, endpoint.url, rpc("ping", `{}`)).body, result(`{}`))
			}
		}
		expectLimited(t, "ping", c.ask(t, "ping", `{}`), 10*time.Minute)
		for _, endpoint := range endpointsOf(url, "alpha")[1:] {
			expectRefused(t, post(t, endpoint.url, rpc("ping", `{}`)), 429)
		}
	})
	t.Run("A32 quota returns gradually", func(t *testing.T) {
		url := serve(t, gateway("name little", "rate 10/1s", server.line("alpha")))
		endpoint := rpcAt(url, "alpha")
		if n := remainingPings(t, client, endpoint); n < 10 {
			t.Errorf("%d requests succeeded, want at least 10", n)
		}
		await.Until(t, "one more", func() bool { return post(t, endpoint, rpc("ping", `{}`)).StatusCode == 200 })
	})
	t.Run("A32 five a minute", func(t *testing.T) {
		url := serve(t, gateway("name minute", "rate 5/1m", server.line("alpha")))
		endpoint := rpcAt(url, "alpha")
		began := time.Now()
		n := remainingPings(t, client, endpoint)
		if more := int(time.Since(began) / (12 * time.Second)); n < 5 || n > 5+more {
			t.Errorf("%d requests succeeded, want 5 to %d", n, 5+more)
		}
		got := post(t, endpoint, rpc("ping", `{}`))
		if after, _ := strconv.Atoi(got.Header.Get("Retry-After")); got.StatusCode == 429 && (after < 1 || after > 12) {
			t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
		}
	})
}

// clientFrom returns a client at another local address.
func clientFrom(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DisableCompression: true, DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func TestAccessLimitsOfEachClient(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	t.Run("A33 R14 anonymous clients are limited by address", func(t *testing.T) {
		url := serve(t, gateway("name address", "rate 5/1h", server.line("alpha")))
		endpoint := rpcAt(url, "alpha")
		if n := remainingPings(t, client, endpoint); n != 5 {
			t.Errorf("%d requests succeeded, want 5", n)
		}
		for i := range 5 { // with any client name
			for _, header := range []string{bearer(fmt.Sprintf("invented-%d", i)), fmt.Sprintf("X-Forwarded-For: 10.0.0.%d", i),
				fmt.Sprintf("Forwarded: for=10.0.0.%d", i), fmt.Sprintf("Mcp-Session-Id: s%d", i)} {
				expectRefused(t, post(t, endpoint, rpc("ping", `{}`), header), 429)
			}
			expectRefused(t, post(t, endpoint, rpc("ping", fmt.Sprintf(`{"proxy":{"authToken":"invented-%d"}}`, i))), 429)
		}
		if n := remainingPings(t, clientFrom(t, "127.0.0.2"), endpoint); n != 5 {
			t.Errorf("from another address %d requests succeeded, want 5", n)
		}
		expectRefused(t, post(t, endpoint, rpc("ping", `{}`)), 429)
	})
	t.Run("A33 each token has its own limit", func(t *testing.T) {
		url := serve(t, gateway("name tokens", block("auth token", "one one-AbCdEf0123456789", "two two-AbCdEf0123456789"),
			"rate 5/1h", server.line("alpha")))
		endpoint := rpcAt(url, "alpha")
		for i := range 20 { // refused clients have their own limit and cannot use up that of others
			if got := gatewayErrorOf(t, post(t, endpoint, rpc("ping", `{}`), bearer("wrong"))); got.Status != 401 &&
				(got.Status != 429 || i < 5) {
				t.Errorf("number %d: %+v", i, got)
			}
		}
		for _, token := range []string{"one-AbCdEf0123456789", "two-AbCdEf0123456789"} {
			if n := remainingPings(t, client, endpoint, bearer(token)); n != 5 {
				t.Errorf("%d requests succeeded, want 5", n)
			}
			if n := remainingPings(t, clientFrom(t, "127.0.0.2"), endpoint, bearer(token)); n != 0 {
				t.Errorf("from another address %d more requests succeeded, want 0", n)
			}
		}
	})
	t.Run("A63 each tenant has its own limit", func(t *testing.T) {
		url := serve(t, gateway("name tenants", "rate 50/1h",
			block("client small", "token small-AbCdEf0123456789", "rate 3/1h"),
			block("client large", "token large-AbCdEf0123456789", "rate 7/1h"),
			block("client free", "token free-AbCdEf0123456789"),
			block("auth token", "team-a teama-AbCdEf0123456789", "team-b teamb-AbCdEf0123456789"),
			block("client team-*", "rate 4/1h"), server.line("alpha")))
		endpoint := rpcAt(url, "alpha")
		for token, want := range map[string]int{"small": 3, "large": 7, "free": 50, "teama": 4, "teamb": 4} {
			if n := remainingPings(t, client, endpoint, bearer(token+"-AbCdEf0123456789")); n != want {
				t.Errorf("A63 %s: %d requests succeeded, want %d", token, n, want)
			}
		}
	})
}

func TestAccessLimitsOfTools(t *testing.T) {
	isolate(t)
	server, other := newLenientServer(t, "echo", "slow", "slower"), newLenientServer(t, "echo")
	call := func(t *testing.T, endpoint, tool string, headers ...string) int {
		t.Helper()
		return post(t, endpoint, rpc("tools/call", `{"name":"`+tool+`","arguments":{}}`), headers...).StatusCode
	}
	t.Run("A64 a tool", func(t *testing.T) {
		url := serve(t, gateway("name tool", "rate alpha::slow 2/1h", server.line("alpha"), other.line("beta")))
		endpoint := rpcAt(url, "alpha")
		before := len(server.params("tools/call"))
		if n := countUntilRefused(t, func() int { return call(t, endpoint, "slow") }); n != 2 {
			t.Errorf("%d requests succeeded, want 2", n)
		}
		if n := len(server.params("tools/call")) - before; n != 2 {
			t.Errorf("the server got %d calls", n)
		}
		for range 10 {
			if status := call(t, endpoint, "slower"); status != 200 {
				t.Errorf("another tool: %d", status)
			}
		}
		if got := post(t, endpoint, rpc("prompts/get", `{"name":"slow"}`)); got.StatusCode != 200 {
			t.Errorf("a prompt of the same name: %d", got.StatusCode)
		}
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			if got := c.ask(t, "tools/call", `{"name":"alpha::slow","arguments":{}}`); got.status != 429 {
				t.Errorf("at /mcp of a %s: %d", era.name, got.status)
			}
		}
	})
	t.Run("A64 a pattern of tools is one budget", func(t *testing.T) {
		url := serve(t, gateway("name pattern", "rate *::s* 3/1h", "rate beta::* 2/1h", server.line("alpha"),
			other.line("beta")))
		for i, tool := range []string{"slow", "slower", "slow", "slower"} {
			if status := call(t, rpcAt(url, "alpha"), tool); (status == 200) != (i < 3) {
				t.Errorf("number %d: %d", i, status)
			}
		}
		if n := countUntilRefused(t, func() int { return call(t, rpcAt(url, "beta"), "echo") }); n != 2 {
			t.Errorf("%d calls of the other server succeeded, want 2", n)
		}
		for range 10 {
			if status := call(t, rpcAt(url, "alpha"), "echo"); status != 200 {
				t.Errorf("a tool that does not fit: %d", status)
			}
		}
	})
	t.Run("A64 a tool that is called by call_tool", func(t *testing.T) {
		url := serve(t, gateway("name discovery", "separator __", "discovery on", "rate alpha::slow 3/1h",
			server.line("alpha")))
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			want := 3
			if era.modern { // the legacy client has used up the quota
				want = 0
			}
			if n := countUntilRefused(t,
				func() int { return c.ask(t, "tools/call", callToolParams("alpha__slow", `{}`)).status }); n != want {
				t.Errorf("%s: %d requests succeeded, want %d", era.name, n, want)
			}
			expectLimited(t, "by its name", c.ask(t, "tools/call", callOf("alpha", "slow", `{}`)), time.Hour)
		}
	})
	t.Run("A64 a call without an id", func(t *testing.T) {
		url := serve(t, gateway("name notifications", "separator __", "rate alpha::slow 2/1h", server.line("alpha")))
		c := newTestClient(t, joinedAt(url), false, `{}`)
		before := len(server.params("tools/call"))
		for range 10 {
			for _, endpoint := range endpointsOf(url, "alpha") {
				name, headers := "slow", []string{acceptBoth}
				if endpoint.name == "/mcp" {
					name, headers = "alpha__slow", append(headers, c.Headers...)
				}
				post(t, endpoint.url, `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"`+name+`","arguments":{}}}`,
					headers...)
				post(t, endpoint.url, `{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"`+name+
					`","arguments":{}}}`, headers...)
			}
		}
		if n := len(server.params("tools/call")) - before; n > 2 {
			t.Errorf("the server got %d calls", n)
		}
	})
	t.Run("A63 A64 a tool of a tenant", func(t *testing.T) {
		url := serve(t, gateway("name both", block("client one", "token one-AbCdEf0123456789", "rate alpha::slow 2/1h"),
			block("client two", "token two-AbCdEf0123456789", "rate alpha::slow 4/1h"), server.line("alpha")))
		for token, want := range map[string]int{"one": 2, "two": 4} {
			if n := countUntilRefused(t, func() int {
				return call(t, rpcAt(url, "alpha"), "slow", bearer(token+"-AbCdEf0123456789"))
			}); n != want {
				t.Errorf("%s: %d requests succeeded, want %d", token, n, want)
			}
		}
	})
}

func TestAccessLimitsTogether(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "slow")
	t.Run("A65 a burst is lower than the long-term limit", func(t *testing.T) {
		url := serve(t, gateway("name burst", "rate 60/10h burst 10", server.line("alpha")))
		if n := remainingPings(t, client, rpcAt(url, "alpha")); n != 10 {
			t.Errorf("%d requests succeeded, want 10", n)
		}
		got := post(t, rpcAt(url, "alpha"), rpc("ping", `{}`))
		if after, _ := strconv.Atoi(got.Header.Get("Retry-After")); after < 1 || after > 600 {
			t.Errorf("Retry-After %q, want at most that of one request", got.Header.Get("Retry-After"))
		}
	})
	t.Run("A65 sixty a minute with a burst of ten", func(t *testing.T) {
		url := serve(t, gateway("name sixty", "rate 60/1m burst 10", server.line("alpha")))
		began := time.Now()
		n := remainingPings(t, client, rpcAt(url, "alpha"))
		if more := int(time.Since(began) / time.Second); n < 10 || n > 10+more {
			t.Errorf("%d requests succeeded, want 10 to %d", n, 10+more)
		}
		await.Until(t, "one more", func() bool { return post(t, rpcAt(url, "alpha"), rpc("ping", `{}`)).StatusCode == 200 })
	})
	t.Run("A65 two rates of the same client", func(t *testing.T) {
		url := serve(t, gateway("name two", "rate 100/1h", "rate 4/1h", server.line("alpha")))
		if n := remainingPings(t, client, rpcAt(url, "alpha")); n != 4 {
			t.Errorf("%d requests succeeded, want 4", n)
		}
	})
	t.Run("A65 a request refused by one limit does not use up another", func(t *testing.T) {
		url := serve(t, gateway("name refusal", "rate alpha::slow 2/1h", block("client one", "token one-AbCdEf0123456789",
			"rate 10/1h"), server.line("alpha")))
		one := bearer("one-AbCdEf0123456789")
		endpoint := rpcAt(url, "alpha")
		call := func(tool string) int {
			return post(t, endpoint, rpc("tools/call", `{"name":"`+tool+`","arguments":{}}`), one).StatusCode
		}
		for i := range 50 {
			if status := call("slow"); (status == 200) != (i < 2) {
				t.Fatalf("number %d: %d", i, status)
			}
		}
		if n := countUntilRefused(t, func() int { return call("echo") }); n != 8 {
			t.Errorf("%d requests succeeded, want 8", n)
		}
	})
	t.Run("A65 the same in reverse order", func(t *testing.T) {
		address := freeAddress(t)
		config := func(rate string) string {
			return site(address, gateway("name around", "rate alpha::slow 3/1h", rate, server.line("alpha")))
		}
		load(t, config("rate 1/1h"))
		endpoint := rpcAt("http://"+address, "alpha")
		call := func() int {
			return post(t, endpoint, rpc("tools/call", `{"name":"slow","arguments":{}}`), connectionClose).StatusCode
		}
		for i := range 20 {
			if status := call(); (status == 200) != (i < 1) {
				t.Fatalf("number %d: %d", i, status)
			}
		}
		load(t, config(""))
		if n := countUntilRefused(t, call); n != 2 {
			t.Errorf("%d requests succeeded, want 2", n)
		}
	})
	t.Run("A54 A64 denied calls use no quota", func(t *testing.T) {
		url := serve(t, gateway("name denied", block("client one", "token one-AbCdEf0123456789", "deny alpha::slow",
			"rate 5/1h"), server.line("alpha")))
		for range 20 {
			expectRefused(t, post(t, rpcAt(url, "alpha"), rpc("tools/call", `{"name":"slow","arguments":{}}`),
				bearer("one-AbCdEf0123456789")), 403)
		}
		if n := remainingPings(t, client, rpcAt(url, "alpha"), bearer("one-AbCdEf0123456789")); n != 5 {
			t.Errorf("%d requests succeeded, want 5", n)
		}
	})
}

// A reload keeps used quota. New limits apply from then on.
func TestAccessLimitsAfterReloads(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	address := freeAddress(t)
	config := func(lines ...string) string {
		return site(address, gateway(append([]string{"name reloads", "auth token one-AbCdEf0123456789 one",
			server.line("alpha")}, lines...)...))
	}
	endpoint := rpcAt("http://"+address, "alpha")
	headers := []string{bearer("one-AbCdEf0123456789"), connectionClose}
	load(t, config("rate 5/1h"))
	for range 2 {
		same(t, post(t, endpoint, rpc("ping", `{}`), headers...).body, result(`{}`))
	}
	t.Run("A63 remaining quota is kept", func(t *testing.T) {
		load(t, config("rate 5/1h")+site(freeAddress(t), "respond x"))
		if n := remainingPings(t, client, endpoint, headers...); n != 3 {
			t.Errorf("%d requests succeeded, want 3", n)
		}
	})
	t.Run("A63 an empty quota stays empty", func(t *testing.T) {
		for range 3 {
			load(t, config("rate 5/1h", "mask off"))
			load(t, config("rate 5/1h"))
		}
		if n := remainingPings(t, client, endpoint, headers...); n != 0 {
			t.Errorf("%d requests succeeded, want 0", n)
		}
	})
	t.Run("A63 a higher limit", func(t *testing.T) {
		load(t, config("rate 5000/1s"))
		await.Until(t, "more", func() bool { return post(t, endpoint, rpc("ping", `{}`), headers...).StatusCode == 200 })
	})
	t.Run("A63 a lower limit", func(t *testing.T) {
		load(t, config("rate 3/1h"))
		if n := remainingPings(t, client, endpoint, headers...); n > 3 {
			t.Errorf("%d requests succeeded, want at most 3", n)
		}
	})
	t.Run("A63 no limit", func(t *testing.T) {
		load(t, config())
		for range 10 {
			same(t, post(t, endpoint, rpc("ping", `{}`), headers...).body, result(`{}`))
		}
	})
}

// Two clients make ten thousand concurrent calls of two tools under overlapping limits. The limits
// hold exactly.
func TestAccessLimitsUnderTraffic(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "slow")
	url := serve(t, gateway("name traffic", "rate 4000/1000h", "rate *::slow 1500/1000h",
		block("client one", "token one-AbCdEf0123456789", "rate 3000/1000h", "rate alpha::slow 1000/1000h"),
		block("client two", "token two-AbCdEf0123456789"), server.line("alpha")))
	connections := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(connections.CloseIdleConnections)
	caller := &http.Client{Transport: connections, Timeout: patience}
	type key struct{ client, tool string }
	var mu sync.Mutex
	passed := map[key]int{}
	var running sync.WaitGroup
	for worker := range 16 {
		running.Go(func() {
			for i := worker; i < 10_000; i += 16 {
				k := key{[]string{"one", "two"}[i/2%2], []string{"echo", "slow"}[i%2]}
				res, err := caller.Do(request(t, t.Context(), "POST", rpcAt(url, "alpha"),
					rpc("tools/call", `{"name":"`+k.tool+`","arguments":{}}`), bearer(k.client+"-AbCdEf0123456789")))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode == 200 {
					mu.Lock()
					passed[k]++
					mu.Unlock()
				} else if res.StatusCode != 429 {
					t.Errorf("status %d", res.StatusCode)
				}
			}
		})
	}
	running.Wait()
	for k, want := range map[key]int{{"one", "slow"}: 1000, {"one", "echo"}: 2000, {"two", "slow"}: 1500,
		{"two", "echo"}: 2500} {
		if got := passed[k]; got < want-1 || got > want+1 {
			t.Errorf("A65 %d calls of %s by %s succeeded, want %d", got, k.tool, k.client, want)
		}
	}
	if got, want := server.Count(), passed[key{"one", "slow"}]+passed[key{"one", "echo"}]+passed[key{"two", "slow"}]+
		passed[key{"two", "echo"}]; got != want {
		t.Errorf("A65 the server received %d requests, want %d", got, want)
	}
}
