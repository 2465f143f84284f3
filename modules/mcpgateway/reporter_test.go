package mcpgateway

import (
	"bytes"
	"encoding/json"
	"io"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// auditTo returns a gateway that writes its audit log to w.
func auditTo(w io.Writer) *Handler {
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	return &Handler{auditLogger: zap.New(zapcore.NewCore(encoder, zapcore.AddSync(w), zap.InfoLevel))}
}

// isolateRegistry empties the registry for the duration of a test.
func isolateRegistry(t testing.TB) {
	others := registry.all
	registry.all = nil
	t.Cleanup(func() { registry.all = others })
}

func TestAuditLine(t *testing.T) {
	isolateRegistry(t)
	call := inbound.Call{
		Client: "ann", Address: "192.0.2.1", Method: "tools/call",
		Target: mcp.Target{Server: "files", Kind: mcp.Tool, Name: "read\n\x1b[2J"}, RequestID: "7", Outcome: "ok",
		Duration: 1500 * time.Millisecond,
	}
	failed := call
	failed.Outcome, failed.ErrorCode, failed.Arguments = "error", -32099, []byte("{\n \"path\": \"/a\\u001b\"}")
	prompt, resource := call, call
	prompt.Target = mcp.Target{Server: "files", Kind: mcp.Prompt, Name: "p"}
	resource.Target = mcp.Target{Kind: mcp.Resource, Name: "file:///a"}
	const begin = `{"level":"info","msg":"call","client":"ann","client_ip":"192.0.2.1",`
	for _, test := range []struct {
		name string
		call inbound.Call
		want string
	}{
		{"a tool", call, begin + `"mcp_server":"files","mcp_method":"tools/call","mcp_tool":"read\n\u001b[2J",` +
			`"request_id":"7","outcome":"ok","duration":1.5}`},
		{"a failure and arguments", failed, begin + `"mcp_server":"files","mcp_method":"tools/call",` +
			`"mcp_tool":"read\n\u001b[2J","request_id":"7","outcome":"error","mcp_error_code":-32099,"duration":1.5,` +
			`"arguments":{"path":"/a\u001b"}}`},
		{"a prompt", prompt, begin + `"mcp_server":"files","mcp_method":"tools/call","mcp_prompt":"p",` +
			`"request_id":"7","outcome":"ok","duration":1.5}`},
		{"a resource", resource, begin + `"mcp_server":"","mcp_method":"tools/call","mcp_resource":"file:///a",` +
			`"request_id":"7","outcome":"ok","duration":1.5}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			reporter{Handler: auditTo(&log)}.CallDone(test.call)
			line := log.Bytes()
			_, rest, _ := bytes.Cut(line, []byte(`"ts":`))
			_, rest, _ = bytes.Cut(rest, []byte(","))
			if got := `{"level":"info",` + string(bytes.TrimSuffix(rest, []byte("\n"))); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// The audit lines of all gateways are in chronological order.
func TestAuditLinesAreInOrder(t *testing.T) {
	isolateRegistry(t)
	const writers, each = 8, 500
	var log bytes.Buffer // the lock of the audit lines guards it
	h := auditTo(&log)
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			o := reporter{Handler: &Handler{auditLogger: h.auditLogger}}
			for range each {
				o.CallDone(inbound.Call{Client: "ann", Outcome: "ok"})
			}
		})
	}
	all.Wait()
	var last float64
	lines := 0
	for decoder := json.NewDecoder(&log); decoder.More(); lines++ {
		var line struct{ TS float64 }
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line.TS < last {
			t.Fatalf("line %d: %f after %f", lines, line.TS, last)
		}
		last = line.TS
	}
	if lines != writers*each {
		t.Errorf("got %d lines, want %d", lines, writers*each)
	}
}

// A call that ends after a reload is logged by the new configuration.
func TestAuditAfterAReload(t *testing.T) {
	isolateRegistry(t)
	var before, after bytes.Buffer
	old, next := auditTo(&before), auditTo(&after)
	call := func() { reporter{Handler: old}.CallDone(inbound.Call{}) }
	for step, do := range []func(){
		func() {}, // no gateway is registered yet
		func() { registry.add(old) },
		func() { registry.add(next) },
		func() { registry.remove(old) },
	} {
		do()
		before.Reset()
		after.Reset()
		call()
		if isNew := step >= 2; (before.Len() == 0) != isNew || (after.Len() == 0) == isNew {
			t.Errorf("step %d: got %q in the old log and %q in the new one", step, &before, &after)
		}
	}
}

// BenchmarkAudit measures the cost of recording a call for the admin API, with and without an audit
// line.
func BenchmarkAudit(b *testing.B) {
	isolateRegistry(b)
	call := inbound.Call{
		Client: "ann", Address: "192.0.2.1", Method: "tools/call",
		Target: mcp.Target{Server: "files", Kind: mcp.Tool, Name: "read"}, RequestID: "7", Outcome: "ok",
		Duration: time.Second,
	}
	with := call
	with.Arguments = []byte(`{"path":"/etc/hosts"}`)
	for _, bench := range []struct {
		audit string
		call  inbound.Call
	}{{auditDenied, call}, {"all", call}, {"arguments", with}} {
		b.Run(bench.audit, func(b *testing.B) {
			o := reporter{Handler: auditTo(io.Discard)}
			o.Audit = bench.audit
			b.ReportAllocs()
			for b.Loop() {
				o.CallDone(bench.call)
			}
		})
	}
}
