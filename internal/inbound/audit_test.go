package inbound

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

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
				audited{q}.report()
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
