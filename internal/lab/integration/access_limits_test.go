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

// The limits of these tests are for an hour, in which none of them takes so long that
// anything comes back by itself.

// isLimited wants a request to be refused because there were too many, and the client to
// be told when to try again.
func isLimited(t *testing.T, what string, got said, within time.Duration) {
	t.Helper()
	if got.status != 429 || got.answer.Error == nil || got.answer.Error.Message != "Rate limit exceeded" || !strings.Contains(string(got.answer.Error.Data), `"code":"rate_limited"`) {
		t.Errorf("%s: %d %.300s\nwant 429 rate_limited", what, got.status, got.answer.Raw)
	}
	after, err := strconv.Atoi(got.header.Get("Retry-After"))
	if err != nil || after < 1 || time.Duration(after)*time.Second > within {
		t.Errorf("%s: Retry-After %q, want from 1 to %v", what, got.header.Get("Retry-After"), within.Seconds())
	}
}

// spent makes requests until one is refused, and returns how many were not.
func spent(t *testing.T, ask func() int) (n int) {
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
	t.Fatal("nothing is refused")
	return n
}

// budget returns how many pings are left to whom these headers tell.
func budget(t *testing.T, c *http.Client, at string, headers ...string) int {
	t.Helper()
	return spent(t, func() int { return send(t, c, "POST", at, rpc("ping", `{}`), headers...).StatusCode })
}

func TestAccessWithinLimits(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	for _, era := range clientEras {
		t.Run("A32 the sixth of five at /mcp of a "+era.name, func(t *testing.T) {
			url := serve(t, gateway("separator __", "name "+strings.ReplaceAll(era.name, " ", "-"), "rate 5/1h", server.line("alpha")))
			method := "ping"
			if era.modern {
				method = "prompts/list" // it has no ping
			}
			for range 3 { // handshakes do not count
				c := newSpeaker(t, joinedAt(url), era.modern, `{}`)
				if era.modern {
					may(t, "server/discover", c.ask(t, "server/discover", `{}`))
				}
			}
			c := newSpeaker(t, joinedAt(url), era.modern, `{}`)
			for range 5 {
				may(t, method, c.ask(t, method, `{}`))
			}
			before := server.Count()
			isLimited(t, method, c.ask(t, method, `{}`), 12*time.Minute)
			isLimited(t, "a call", c.ask(t, "tools/call", callOf("alpha", "echo", `{}`)), 12*time.Minute)
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	for _, way := range []string{"/mcp/{server}", "/rpc"} {
		t.Run("A32 the sixth of five at "+way, func(t *testing.T) {
			url := serve(t, gateway("name "+strconv.Quote(way), "rate 5/1h", server.line("alpha")))
			at := mcpAt(url, "alpha")
			if way == "/rpc" {
				at = rpcAt(url, "alpha")
			}
			for range 3 {
				if got := post(t, at, rpc("initialize", `{`+initParams+`}`), acceptBoth); got.StatusCode != 200 {
					t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
				}
			}
			for range 5 {
				same(t, post(t, at, rpc("ping", `{}`)).body, result(`{}`))
			}
			before := server.Count()
			got := post(t, at, rpc("ping", `{}`))
			isRefused(t, got, 429)
			if after, err := strconv.Atoi(got.Header.Get("Retry-After")); err != nil || after < 1 || after > 12*60 {
				t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
			}
			if failureOf(t, got).ID != "1" {
				t.Errorf("the id is lost: %s", got.body)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	t.Run("A32 all ways in are one", func(t *testing.T) {
		url := serve(t, gateway("name ways", "rate 6/1h", server.line("alpha")))
		c := newSpeaker(t, joinedAt(url), false, `{}`)
		for range 2 {
			may(t, "ping", c.ask(t, "ping", `{}`))
			for _, way := range waysIn(url, "alpha")[1:] {
				same(t, post(t, way.at, rpc("ping", `{}`)).body, result(`{}`))
			}
		}
		isLimited(t, "ping", c.ask(t, "ping", `{}`), 10*time.Minute)
		for _, way := range waysIn(url, "alpha")[1:] {
			isRefused(t, post(t, way.at, rpc("ping", `{}`)), 429)
		}
	})
	t.Run("A32 it comes back little by little", func(t *testing.T) {
		url := serve(t, gateway("name little", "rate 10/1s", server.line("alpha")))
		at := rpcAt(url, "alpha")
		if n := budget(t, client, at); n < 10 {
			t.Errorf("%d were let through", n)
		}
		await.Until(t, "one more", func() bool { return post(t, at, rpc("ping", `{}`)).StatusCode == 200 })
	})
	t.Run("A32 five a minute", func(t *testing.T) {
		url := serve(t, gateway("name minute", "rate 5/1m", server.line("alpha")))
		at := rpcAt(url, "alpha")
		began := time.Now()
		n := budget(t, client, at)
		if more := int(time.Since(began) / (12 * time.Second)); n < 5 || n > 5+more {
			t.Errorf("%d were let through", n)
		}
		got := post(t, at, rpc("ping", `{}`))
		if after, _ := strconv.Atoi(got.Header.Get("Retry-After")); got.StatusCode == 429 && (after < 1 || after > 12) {
			t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
		}
	})
}

// fromAddress is a client at another address of this machine.
func fromAddress(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DisableCompression: true, DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func TestAccessLimitsOfEachClient(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	t.Run("A33 R14 who is not known has the limit of an address", func(t *testing.T) {
		url := serve(t, gateway("name address", "rate 5/1h", server.line("alpha")))
		at := rpcAt(url, "alpha")
		if n := budget(t, client, at); n != 5 {
			t.Errorf("%d were let through", n)
		}
		for i := range 5 { // whatever they call themselves
			for _, header := range []string{bearer(fmt.Sprintf("invented-%d", i)), fmt.Sprintf("X-Forwarded-For: 10.0.0.%d", i), fmt.Sprintf("Forwarded: for=10.0.0.%d", i), fmt.Sprintf("Mcp-Session-Id: s%d", i)} {
				isRefused(t, post(t, at, rpc("ping", `{}`), header), 429)
			}
			isRefused(t, post(t, at, rpc("ping", fmt.Sprintf(`{"proxy":{"authToken":"invented-%d"}}`, i))), 429)
		}
		if n := budget(t, fromAddress(t, "127.0.0.2"), at); n != 5 {
			t.Errorf("from another address %d were let through", n)
		}
		isRefused(t, post(t, at, rpc("ping", `{}`)), 429)
	})
	t.Run("A33 each token has its own", func(t *testing.T) {
		url := serve(t, gateway("name tokens", block("auth token", "one one-AbCdEf0123456789", "two two-AbCdEf0123456789"), "rate 5/1h", server.line("alpha")))
		at := rpcAt(url, "alpha")
		for i := range 20 { // strangers have their own limit, too, and cannot use up what others have
			if got := failureOf(t, post(t, at, rpc("ping", `{}`), bearer("wrong"))); got.Status != 401 && (got.Status != 429 || i < 5) {
				t.Errorf("number %d: %+v", i, got)
			}
		}
		for _, token := range []string{"one-AbCdEf0123456789", "two-AbCdEf0123456789"} {
			if n := budget(t, client, at, bearer(token)); n != 5 {
				t.Errorf("%d were let through", n)
			}
			if n := budget(t, fromAddress(t, "127.0.0.2"), at, bearer(token)); n != 0 {
				t.Errorf("from another address %d more were let through", n)
			}
		}
	})
	t.Run("A63 each tenant has its own", func(t *testing.T) {
		url := serve(t, gateway("name tenants", "rate 50/1h",
			block("client small", "token small-AbCdEf0123456789", "rate 3/1h"), block("client large", "token large-AbCdEf0123456789", "rate 7/1h"),
			block("client free", "token free-AbCdEf0123456789"),
			block("auth token", "team-a teama-AbCdEf0123456789", "team-b teamb-AbCdEf0123456789"), block("client team-*", "rate 4/1h"), server.line("alpha")))
		at := rpcAt(url, "alpha")
		for token, want := range map[string]int{"small": 3, "large": 7, "free": 50, "teama": 4, "teamb": 4} {
			if n := budget(t, client, at, bearer(token+"-AbCdEf0123456789")); n != want {
				t.Errorf("A63 %s: %d were let through, want %d", token, n, want)
			}
		}
	})
}

func TestAccessLimitsOfTools(t *testing.T) {
	isolate(t)
	server, other := newLenientServer(t, "echo", "slow", "slower"), newLenientServer(t, "echo")
	call := func(t *testing.T, at, tool string, headers ...string) int {
		t.Helper()
		return post(t, at, rpc("tools/call", `{"name":"`+tool+`","arguments":{}}`), headers...).StatusCode
	}
	t.Run("A64 a tool", func(t *testing.T) {
		url := serve(t, gateway("name tool", "rate alpha::slow 2/1h", server.line("alpha"), other.line("beta")))
		at := rpcAt(url, "alpha")
		before := len(server.params("tools/call"))
		if n := spent(t, func() int { return call(t, at, "slow") }); n != 2 {
			t.Errorf("%d were let through", n)
		}
		if n := len(server.params("tools/call")) - before; n != 2 {
			t.Errorf("the server got %d calls", n)
		}
		for range 10 {
			if status := call(t, at, "slower"); status != 200 {
				t.Errorf("another tool: %d", status)
			}
		}
		if got := post(t, at, rpc("prompts/get", `{"name":"slow"}`)); got.StatusCode != 200 {
			t.Errorf("a prompt of the same name: %d", got.StatusCode)
		}
		for _, era := range clientEras {
			c := newSpeaker(t, joinedAt(url), era.modern, `{}`)
			if got := c.ask(t, "tools/call", `{"name":"alpha::slow","arguments":{}}`); got.status != 429 {
				t.Errorf("at /mcp of a %s: %d", era.name, got.status)
			}
		}
	})
	t.Run("A64 a pattern of tools is one budget", func(t *testing.T) {
		url := serve(t, gateway("name pattern", "rate *::s* 3/1h", "rate beta::* 2/1h", server.line("alpha"), other.line("beta")))
		for i, tool := range []string{"slow", "slower", "slow", "slower"} {
			if status := call(t, rpcAt(url, "alpha"), tool); (status == 200) != (i < 3) {
				t.Errorf("number %d: %d", i, status)
			}
		}
		if n := spent(t, func() int { return call(t, rpcAt(url, "beta"), "echo") }); n != 2 {
			t.Errorf("%d of the other server were let through", n)
		}
		for range 10 {
			if status := call(t, rpcAt(url, "alpha"), "echo"); status != 200 {
				t.Errorf("a tool that does not fit: %d", status)
			}
		}
	})
	t.Run("A64 a tool that is called by call_tool", func(t *testing.T) {
		url := serve(t, gateway("name discovery", "separator __", "discovery on", "rate alpha::slow 3/1h", server.line("alpha")))
		for _, era := range clientEras {
			c := newSpeaker(t, joinedAt(url), era.modern, `{}`)
			want := 3
			if era.modern { // the other has used them up
				want = 0
			}
			if n := spent(t, func() int { return c.ask(t, "tools/call", byCallTool("alpha__slow", `{}`)).status }); n != want {
				t.Errorf("%s: %d were let through", era.name, n)
			}
			isLimited(t, "by its name", c.ask(t, "tools/call", callOf("alpha", "slow", `{}`)), time.Hour)
		}
	})
	t.Run("A64 a call that wants no answer", func(t *testing.T) {
		url := serve(t, gateway("name notifications", "separator __", "rate alpha::slow 2/1h", server.line("alpha")))
		c := newSpeaker(t, joinedAt(url), false, `{}`)
		before := len(server.params("tools/call"))
		for range 10 {
			for _, way := range waysIn(url, "alpha") {
				name, headers := "slow", []string{acceptBoth}
				if way.name == "/mcp" {
					name, headers = "alpha__slow", append(headers, c.Headers...)
				}
				post(t, way.at, `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"`+name+`","arguments":{}}}`, headers...)
				post(t, way.at, `{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"`+name+`","arguments":{}}}`, headers...)
			}
		}
		if n := len(server.params("tools/call")) - before; n > 2 {
			t.Errorf("the server got %d calls", n)
		}
	})
	t.Run("A63 A64 a tool of a tenant", func(t *testing.T) {
		url := serve(t, gateway("name both", block("client one", "token one-AbCdEf0123456789", "rate alpha::slow 2/1h"), block("client two", "token two-AbCdEf0123456789", "rate alpha::slow 4/1h"), server.line("alpha")))
		for token, want := range map[string]int{"one": 2, "two": 4} {
			if n := spent(t, func() int { return call(t, rpcAt(url, "alpha"), "slow", bearer(token+"-AbCdEf0123456789")) }); n != want {
				t.Errorf("%s: %d were let through", token, n)
			}
		}
	})
}

func TestAccessLimitsTogether(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "slow")
	t.Run("A65 a burst is less than what is allowed in the long run", func(t *testing.T) {
		url := serve(t, gateway("name burst", "rate 60/10h burst 10", server.line("alpha")))
		if n := budget(t, client, rpcAt(url, "alpha")); n != 10 {
			t.Errorf("%d were let through", n)
		}
		got := post(t, rpcAt(url, "alpha"), rpc("ping", `{}`))
		if after, _ := strconv.Atoi(got.Header.Get("Retry-After")); after < 1 || after > 600 {
			t.Errorf("Retry-After %q, want at most that of one request", got.Header.Get("Retry-After"))
		}
	})
	t.Run("A65 sixty a minute with a burst of ten", func(t *testing.T) {
		url := serve(t, gateway("name sixty", "rate 60/1m burst 10", server.line("alpha")))
		began := time.Now()
		n := budget(t, client, rpcAt(url, "alpha"))
		if more := int(time.Since(began) / time.Second); n < 10 || n > 10+more {
			t.Errorf("%d were let through", n)
		}
		await.Until(t, "one more", func() bool { return post(t, rpcAt(url, "alpha"), rpc("ping", `{}`)).StatusCode == 200 })
	})
	t.Run("A65 two rates of the same client", func(t *testing.T) {
		url := serve(t, gateway("name two", "rate 100/1h", "rate 4/1h", server.line("alpha")))
		if n := budget(t, client, rpcAt(url, "alpha")); n != 4 {
			t.Errorf("%d were let through", n)
		}
	})
	t.Run("A65 a refusal by one does not use up another", func(t *testing.T) {
		url := serve(t, gateway("name refusal", "rate alpha::slow 2/1h", block("client one", "token one-AbCdEf0123456789", "rate 10/1h"), server.line("alpha")))
		one := bearer("one-AbCdEf0123456789")
		at := rpcAt(url, "alpha")
		call := func(tool string) int {
			return post(t, at, rpc("tools/call", `{"name":"`+tool+`","arguments":{}}`), one).StatusCode
		}
		for i := range 50 {
			if status := call("slow"); (status == 200) != (i < 2) {
				t.Fatalf("number %d: %d", i, status)
			}
		}
		if n := spent(t, func() int { return call("echo") }); n != 8 {
			t.Errorf("%d of 8 were let through", n)
		}
	})
	t.Run("A65 nor the other way round", func(t *testing.T) {
		address := freeAddress(t)
		config := func(rate string) string {
			return site(address, gateway("name around", "rate alpha::slow 3/1h", rate, server.line("alpha")))
		}
		load(t, config("rate 1/1h"))
		at := rpcAt("http://"+address, "alpha")
		call := func() int {
			return post(t, at, rpc("tools/call", `{"name":"slow","arguments":{}}`), closes).StatusCode
		}
		for i := range 20 {
			if status := call(); (status == 200) != (i < 1) {
				t.Fatalf("number %d: %d", i, status)
			}
		}
		load(t, config(""))
		if n := spent(t, call); n != 2 {
			t.Errorf("%d of 2 were let through", n)
		}
	})
	t.Run("A54 A64 what is denied uses up nothing", func(t *testing.T) {
		url := serve(t, gateway("name denied", block("client one", "token one-AbCdEf0123456789", "deny alpha::slow", "rate 5/1h"), server.line("alpha")))
		for range 20 {
			isRefused(t, post(t, rpcAt(url, "alpha"), rpc("tools/call", `{"name":"slow","arguments":{}}`), bearer("one-AbCdEf0123456789")), 403)
		}
		if n := budget(t, client, rpcAt(url, "alpha"), bearer("one-AbCdEf0123456789")); n != 5 {
			t.Errorf("%d were let through", n)
		}
	})
}

// What has been used stays used when the configuration is replaced, and new numbers
// count from then on.
func TestAccessLimitsAfterReloads(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	address := freeAddress(t)
	config := func(lines ...string) string {
		return site(address, gateway(append([]string{"name reloads", "auth token one-AbCdEf0123456789 one", server.line("alpha")}, lines...)...))
	}
	at := rpcAt("http://"+address, "alpha")
	headers := []string{bearer("one-AbCdEf0123456789"), closes}
	load(t, config("rate 5/1h"))
	for range 2 {
		same(t, post(t, at, rpc("ping", `{}`), headers...).body, result(`{}`))
	}
	t.Run("A63 what is left stays", func(t *testing.T) {
		load(t, config("rate 5/1h")+site(freeAddress(t), "respond x"))
		if n := budget(t, client, at, headers...); n != 3 {
			t.Errorf("%d of 3 were let through", n)
		}
	})
	t.Run("A63 nothing stays nothing", func(t *testing.T) {
		for range 3 {
			load(t, config("rate 5/1h", "mask off"))
			load(t, config("rate 5/1h"))
		}
		if n := budget(t, client, at, headers...); n != 0 {
			t.Errorf("%d were let through", n)
		}
	})
	t.Run("A63 a higher limit", func(t *testing.T) {
		load(t, config("rate 5000/1s"))
		await.Until(t, "more", func() bool { return post(t, at, rpc("ping", `{}`), headers...).StatusCode == 200 })
	})
	t.Run("A63 a lower limit", func(t *testing.T) {
		load(t, config("rate 3/1h"))
		if n := budget(t, client, at, headers...); n > 3 {
			t.Errorf("%d were let through", n)
		}
	})
	t.Run("A63 no limit", func(t *testing.T) {
		load(t, config())
		for range 10 {
			same(t, post(t, at, rpc("ping", `{}`), headers...).body, result(`{}`))
		}
	})
}

// Ten thousand calls at once, of two clients and two tools, under limits that overlap: as
// many are let through as the limits say.
func TestAccessLimitsUnderTraffic(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "slow")
	url := serve(t, gateway("name traffic", "rate 4000/1000h", "rate *::slow 1500/1000h",
		block("client one", "token one-AbCdEf0123456789", "rate 3000/1000h", "rate alpha::slow 1000/1000h"), block("client two", "token two-AbCdEf0123456789"), server.line("alpha")))
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
				res, err := caller.Do(request(t, t.Context(), "POST", rpcAt(url, "alpha"), rpc("tools/call", `{"name":"`+k.tool+`","arguments":{}}`), bearer(k.client+"-AbCdEf0123456789")))
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
	for k, want := range map[key]int{{"one", "slow"}: 1000, {"one", "echo"}: 2000, {"two", "slow"}: 1500, {"two", "echo"}: 2500} {
		if got := passed[k]; got < want-1 || got > want+1 {
			t.Errorf("A65 %d calls of %s by %s were let through, want %d", got, k.tool, k.client, want)
		}
	}
	if got, want := server.Count(), passed[key{"one", "slow"}]+passed[key{"one", "echo"}]+passed[key{"two", "slow"}]+passed[key{"two", "echo"}]; got != want {
		t.Errorf("A65 the server got %d requests of %d", got, want)
	}
}
