package toolresultmask

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/toolresults"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// recoverAll returns the original of each placeholder in a text, as recovered by a client at an
// address. It is "-" for originals that are not found.
func recoverAll(text, address string) (all []string) {
	for _, id := range regexp.MustCompile(`obs_\w{10}`).FindAllString(text, -1) {
		body, ok := toolresults.Originals{}.Original("", address, id)
		if !ok {
			body = []byte("-")
		}
		all = append(all, string(body))
	}
	return all
}

// address is the client address of httptest requests.
const address = "192.0.2.1"

func TestRecover(t *testing.T) {
	h := provision(t, `{"window_turns":1,"recover":{}}`)
	before := count(toolresults.Recovered)
	got, _ := send(t, h, post(turns("AAAA", `B\n\u00e9`, "CCCC")), nil)
	if want := `[AAAA B\n\u00e9]`; fmt.Sprint(recoverAll(got.body, address)) != want {
		t.Errorf("recovered %s from %s", recoverAll(got.body, address), got.body)
	}
	if strings.Contains(got.body, "AAAA") || !strings.Contains(got.body, "outil=read, chars=4, id=obs_") {
		t.Errorf("sent %s", got.body)
	}
	if fmt.Sprint(recoverAll(got.body, "192.0.2.2")) != "[- -]" {
		t.Error("another address recovered an original")
	}
	// Each original was recovered twice, but counts once.
	if n := count(toolresults.Recovered) - before; n != 2 {
		t.Errorf("counted %v recovered results, want 2", n)
	}
	again, _ := send(t, h, post(got.body), nil)
	if again.body != got.body {
		t.Errorf("masked again: %s", again.body)
	}
}

// Every placeholder has an id, even if its original is not kept. If not all originals fit, the last
// ones are kept.
func TestRecoverBounds(t *testing.T) {
	for config, want := range map[string]string{
		`{"max_entries":2}`: "[- - CC DD]",
		`{"max_bytes":4}`:   "[- - CC DD]",
		`{"max_bytes":7}`:   "[A - CC DD]", // BBBB does not fit
		`{"max_bytes":1}`:   "[A - - -]",
	} {
		t.Run(config, func(t *testing.T) {
			h := provision(t, `{"window_turns":1,"recover":`+config+`}`)
			for range 3 {
				got, _ := send(t, h, post(turns("A", "BBBB", "CC", "DD", "EE")), nil)
				if all := fmt.Sprint(recoverAll(got.body, address)); all != want {
					t.Errorf("recovered %s, want %s", all, want)
				}
			}
		})
	}
}

// Every request that contains a result renews its original.
func TestRecoverRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(Handler)
		if err := caddy.StrictUnmarshalJSON([]byte(`{"window_turns":1,"recover":{"ttl":"1m"}}`), h); err != nil {
			t.Fatal(err)
		}
		if err := h.compile(); err != nil {
			t.Fatal(err)
		}
		var err error
		if h.originals, err = toolresults.Open(caddy.Context{}, h.Recover.Limits()); err != nil {
			t.Fatal(err)
		}
		defer h.Cleanup()
		plan := []chat.Original{{ID: "obs_0123456789", Body: []byte("AAAA")}}
		owner := toolresults.Owner(post(""))
		for range 3 {
			h.keep(owner, plan)
			time.Sleep(40 * time.Second)
		}
		if got := recoverAll("obs_0123456789", address); got[0] != "AAAA" {
			t.Error("the original was not renewed")
		}
		time.Sleep(time.Minute)
		if got := recoverAll("obs_0123456789", address); got[0] != "-" {
			t.Error("the original outlived its ttl")
		}
	})
}

// A store is released with its last handler.
func TestRecoverAcrossReloads(t *testing.T) {
	if (toolresults.Originals{}).Kept() {
		t.Fatal("another test left a store open")
	}
	handler := func(config string) *Handler {
		h := new(Handler)
		if err := caddy.StrictUnmarshalJSON([]byte(config), h); err != nil {
			t.Fatal(err)
		}
		ctx, err := caddy.ProvisionContext(new(caddy.Config))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, config := range []string{`{}`, `{"enabled":false,"recover":{}}`} {
		h := handler(config)
		if (toolresults.Originals{}).Kept() {
			t.Errorf("%s opens a store", config)
		}
		_ = h.Cleanup()
	}
	before := handler(`{"window_turns":1,"recover":{}}`)
	got, _ := send(t, before, post(turns("AAAA", "BBBB")), nil)
	after := handler(`{"window_turns":2,"recover":{}}`)
	_ = before.Cleanup()
	if fmt.Sprint(recoverAll(got.body, address)) != "[AAAA]" {
		t.Error("the original was lost in a reload")
	}
	_ = after.Cleanup()
	if fmt.Sprint(recoverAll(got.body, address)) != "[-]" || (toolresults.Originals{}).Kept() {
		t.Error("the store outlived its last handler")
	}
}

func TestRecoverNeedsAnID(t *testing.T) {
	for config, want := range map[string]string{
		`{"recover":{},"placeholder_template":"gone"}`: "recover: placeholder_template needs {id}",
		`{"placeholder_template":"gone {id}"}`:         "placeholder_template: {id} needs recover",
		`{"recover":{"ttl":-1}}`:                       "recover ttl: -1ns is negative",
		`{"recover":{"max_entries":-1}}`:               "recover max_entries: -1 is negative",
		`{"recover":{"max_bytes":-1}}`:                 "recover max_bytes: -1 is negative",
	} {
		h := new(Handler)
		if err := caddy.StrictUnmarshalJSON([]byte(config), h); err != nil {
			t.Fatal(err)
		}
		if err := h.compile(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}

// BenchmarkRecover masks 1 MB of results, all but the last one, with and without keeping originals.
func BenchmarkRecover(b *testing.B) {
	contents := make([]string, 201)
	for i := range contents {
		contents[i] = strings.Repeat(fmt.Sprintf(`line %d of a file\n`, i), 250)
	}
	body := []byte(turns(contents...))
	for name, recover := range map[string]string{"off": `{"window_turns":1}`, "on": `{"window_turns":1,"recover":{}}`} {
		b.Run(name, func(b *testing.B) {
			h := new(Handler)
			_ = caddy.StrictUnmarshalJSON([]byte(recover), h)
			if err := h.compile(); err != nil {
				b.Fatal(err)
			}
			if h.Recover != nil {
				h.originals, _ = toolresults.Open(caddy.Context{}, h.Recover.Limits())
				defer h.originals.Release()
			}
			x := &modelRequest{handler: h}
			r, _ := http.NewRequest("POST", "/", nil)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				plan := x.planChanges(body)
				if h.originals != nil {
					h.keep(toolresults.Owner(r), plan.Originals)
				}
			}
		})
	}
}

// Replicas recover originals of each other, for the user or address that sent them.
func TestReplicas(t *testing.T) {
	engine := replicastest.New()
	replica := func() *Handler {
		h := new(Handler)
		if err := caddy.StrictUnmarshalJSON([]byte(`{"window_turns":1,"recover":{}}`), h); err != nil {
			t.Fatal(err)
		}
		if err := h.Provision(storetest.Replica(t, engine, mcpstore.App{})); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Cleanup() })
		return h
	}
	a, b := replica(), replica()
	got, _ := send(t, a, post(turns("AAAA", "BBBB")), nil)
	id := regexp.MustCompile(`obs_\w{10}`).FindString(got.body)
	owner := "address " + address
	if _, ok := b.originals.Get(owner, id); ok || id == "" {
		t.Fatalf("%q is in the local store before Fetch", id)
	}
	places := []storepool.Place{{Store: b.originals, Owner: "user ann"}, {Store: b.originals, Owner: owner}}
	if err := storepool.Fetch(t.Context(), id, places...); err != nil {
		t.Fatal(err)
	}
	if original, ok := b.originals.Get(owner, id); !ok || string(original) != "AAAA" {
		t.Errorf("found %q, %t", original, ok)
	}
}
