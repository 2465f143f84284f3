package inbound

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

func TestShownArguments(t *testing.T) {
	for name, tt := range map[string]struct{ arguments, want string }{
		"none":               {"", "none"},
		"empty":              {"{}", "{}"},
		"lines":              {`{"a":"x\ny"}`, "{\n  \"a\": \"x\\ny\"\n}"},
		"escaped letters":    {`{"p\u0061th":"\u002fetc"}`, "{\n  \"path\": \"/etc\"\n}"},
		"reordered":          {"{\"a\":\"x\u202ey\"}", "{\n  \"a\": \"x\\u202ey\"\n}"},
		"escaped, reordered": {`{"a":"x\u202ey"}`, "{\n  \"a\": \"x\\u202ey\"\n}"},
		"invisible":          {"{\"a\":\"x\u200b\U000e0041\u3164\"}", "{\n  \"a\": \"x\\u200b\\udb40\\udc41\\u3164\"\n}"},
		"line separators":    {"{\"a\":\"x\u2028Server: b\u0085\"}", "{\n  \"a\": \"x\\u2028Server: b\\u0085\"\n}"},
		"twice":              {`{"a":1,"a":2}`, "{\n  \"a\": 1,\n  \"a\": 2\n}"},
		"not an object":      {`"x\u202ey"`, `"x\u202ey"`},
	} {
		t.Run(name, func(t *testing.T) {
			var arguments []byte
			if tt.arguments != "" {
				arguments = []byte(tt.arguments)
			}
			if got := printableArguments(arguments); got != tt.want {
				t.Errorf("got %s", got)
			}
		})
	}
	for name, arguments := range map[string]string{
		"a long text":    `{"path":"/etc","text":"` + strings.Repeat("x", 100_000) + `","last":"z"}`,
		"many items":     `{"path":"/etc","all":[` + strings.Repeat(`"x",`, 10_000) + `1],"last":"z"}`,
		"a long key":     `{"path":"/etc","` + strings.Repeat("k", 100_000) + `":1}`,
		"deep":           `{"path":"/etc","deep":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`,
		"invisible text": `{"path":"/etc","text":"` + strings.Repeat("\U000e0041", 1_900) + `"}`,
		"a long string":  `"path/etc` + strings.Repeat("x", 100_000) + `"`,
		"blanks":         `{"path":"/etc"` + strings.Repeat("\n", 10_000) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			got := printableArguments([]byte(arguments))
			if n := utf8.RuneCountInString(got); n > maxShown+100 {
				t.Errorf("%d characters", n)
			}
			if !strings.Contains(got, "path") || !strings.Contains(got, "/etc") {
				t.Errorf("got %.300s", got)
			}
			if hidden := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }); hidden >= 0 {
				t.Errorf("character %d is invisible", hidden)
			}
			left := name != "deep" && name != "blanks"
			if left && !strings.Contains(got, "more characters") && !strings.Contains(got, " of ") {
				t.Errorf("no note about the omitted length: %s", got)
			}
		})
	}
}

func TestConfirmationsAreBounded(t *testing.T) {
	all := NewConfirmations(nil)
	defer all.Close()
	victim := all.add("victim")
	var keys []string
	for range 2 * confirmationLimits.OwnerEntries {
		keys = append(keys, all.add("thief"))
	}
	if n := all.open.Len(); n != confirmationLimits.OwnerEntries+1 {
		t.Errorf("%d confirmations are stored", n)
	}
	take := func(key string) bool {
		ok, err := all.take(t.Context(), key)
		return ok && err == nil
	}
	if take(keys[0]) || !take(keys[len(keys)-1]) || !take(victim) || take(victim) {
		t.Error("the oldest confirmation of the owner was not evicted")
	}
}

func TestConfirmationsOfReplicasExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := NewConfirmations(replicastest.Replica(t, engine).Space("gateway"))
		defer a.Close()
		b := NewConfirmations(replicastest.Replica(t, engine).Space("gateway"))
		defer b.Close()
		key, used := a.add("ann"), a.add("ann")
		if ok, err := b.take(t.Context(), used); !ok || err != nil {
			t.Errorf("%t, %v", ok, err)
		}
		time.Sleep(streamable.ServerRequestTimeout + 2*time.Second)
		for _, key := range []string{key, used} {
			if ok, err := b.take(t.Context(), key); ok || err != nil {
				t.Errorf("after expiry: %t, %v", ok, err)
			}
		}
		time.Sleep(streamable.ServerRequestTimeout)
		if left := engine.Values(); len(left) != 0 {
			t.Errorf("%d confirmations did not expire", len(left))
		}
	})
}

func TestTalliesAllocateNothing(t *testing.T) {
	k := new(Usage)
	k.Tally("ann")
	if n := testing.AllocsPerRun(100, func() { k.Tally("ann").Requests.Add(1) }); n > 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

// BenchmarkAudit measures the cost of reporting a call.
func BenchmarkAudit(b *testing.B) {
	redactor, err := redact.New([]string{`sk-[a-z]+`}, []string{"password"})
	if err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name     string
		audit    Audit
		redactor *redact.Redactor
	}{
		{"denied", AuditDenied, nil},
		{"all", AuditAll, nil},
		{"arguments", AuditArguments, nil},
		{"arguments redacted", AuditArguments, redactor},
	} {
		b.Run(bench.name, func(b *testing.B) {
			g := NewGate(Config{
				Servers: []*upstream.Server{{Name: "a"}}, Audit: bench.audit,
				Clients: []*access.Client{{Name: "*", Redactor: bench.redactor}},
			}, forgetful{}, noAggregate{}, Retained{})
			defer g.Close()
			r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", nil)
			q := g.NewRequest(nil, r, Endpoint{Kind: upstream.Single, Server: "a"}, Peer{Address: "192.0.2.1"})
			q.Caller, q.AdmitAsked, q.Outcome = g.Rules.Caller("ann"), true, upstream.OutcomeOK
			if failure := q.Message.ReadRequest([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` +
				`{"name":"read","arguments":{"path":"/etc/hosts","password":"abc"}}}`)); failure != nil {
				b.Fatal(failure)
			}
			q.MethodName()
			q.ToolName() // metrics always need it
			b.ReportAllocs()
			for b.Loop() {
				reportCall(q)
			}
		})
	}
}

// forgetful is an Observer that discards calls.
type forgetful struct{ Observer }

func (forgetful) CallDone(Call) {}

// noAggregate is an Aggregate that does nothing.
type noAggregate struct{ Aggregate }

func (noAggregate) Serve(*Request) *jsonrpc.Failure { return nil }
