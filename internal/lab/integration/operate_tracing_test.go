package integration

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A collector receives the spans that Caddy exports.
type collector struct {
	mu    sync.Mutex
	spans []collectedSpan
}

// A collectedSpan is a span with its attributes as strings.
type collectedSpan struct {
	*tracepb.Span
	attributes map[string]string
	trace      string
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var data tracepb.TracesData // has the wire format of an export request
	if err := proto.Unmarshal(body, &data); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range data.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s := collectedSpan{span, map[string]string{}, hex.EncodeToString(span.GetTraceId())}
				for _, a := range span.GetAttributes() {
					s.attributes[a.GetKey()] = a.GetValue().GetStringValue()
					if a.GetValue().GetStringValue() == "" {
						s.attributes[a.GetKey()] = fmt.Sprint(a.GetValue().GetIntValue())
					}
				}
				c.spans = append(c.spans, s)
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// span waits for the span of a trace that has MCP attributes.
func (c *collector) span(t *testing.T, trace string) (found collectedSpan) {
	t.Helper()
	await.Until(t, "the span of "+trace, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.spans {
			if s.trace == trace && s.attributes["mcp.method.name"] != "" {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// newCollector makes Caddy's tracing module send spans to a collector.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := new(collector)
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + upstream(t, c), "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
		"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "always_on",
		"OTEL_PROPAGATORS": "tracecontext",
	} {
		setenv(t, name, value)
	}
	return c
}

var traceparents = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-01$`)

// traceparentIn returns the traceparent in the _meta of params, and its trace ID.
func traceparentIn(t *testing.T, params string) (traceparent, trace string) {
	t.Helper()
	var p struct {
		Meta struct{ Traceparent string } `json:"_meta"`
	}
	if err := json.Unmarshal([]byte(params), &p); err != nil {
		t.Fatalf("%v: %s", err, params)
	}
	m := traceparents.FindStringSubmatch(p.Meta.Traceparent)
	if m == nil {
		t.Fatalf("no traceparent in %s", params)
	}
	return p.Meta.Traceparent, m[1]
}

// clientTraceparent is the traceparent that a client sends.
const clientTraceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestOperateTracing(t *testing.T) {
	isolate(t)
	spans := newCollector(t)
	defer load(t, "") // flushes the spans before the collector closes
	journal := newJournal(t)
	far := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
	url := serve(t, block("tracing", "span mcp"), gateway("name traces", "separator __",
		block(child("old"), journal.env()), block(child("new", "--modern-only"), journal.env()), "server far http://"+
			upstream(t, far)+"/mcp"))
	t.Cleanup(far.Close)

	type call struct {
		name, server string
		// calls the tool and returns the params that the server received
		echo func(t *testing.T, meta string, headers ...string) string
	}
	var calls []call
	for _, era := range clientEras {
		for _, server := range []string{"old", "new", "far"} {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			calls = append(calls, call{server + " at the aggregate, " + era.name, server, func(t *testing.T, meta string,
				headers ...string) string {
				got := c.ask(t, "tools/call", callOf(server, "echo", `{"text":"x"}`, meta), headers...)
				return got.answer.Text()
			}})
		}
	}
	alone := newTestClient(t, mcpAt(url, "old"), false, `{}`)
	calls = append(calls, call{"old at its own endpoint", "old", func(t *testing.T, meta string,
		headers ...string) string {
		return alone.ask(t, "tools/call", `{"name":"echo","arguments":{"text":"x"},`+meta+`}`, headers...).answer.Text()
	}}, call{"old by plain POST", "old", func(t *testing.T, meta string, headers ...string) string {
		got := post(t, rpcAt(url, "old"), rpc("tools/call", `{"name":"echo","arguments":{"text":"x"},`+meta+`}`), headers...)
		return toolText(t, got.body)
	}})

	check := func(t *testing.T, span collectedSpan, server string) {
		t.Helper()
		for name, want := range map[string]string{"mcp.method.name": "tools/call", "gen_ai.tool.name": "echo",
			"gen_ai.operation.name": "execute_tool", "mcp.server.name": server} {
			if got := span.attributes[name]; got != want {
				t.Errorf("%s is %q, want %q; attributes: %v", name, got, want, span.attributes)
			}
		}
		if span.attributes["error.type"] != "" || span.GetName() != "mcp" {
			t.Errorf("span %q with %v", span.GetName(), span.attributes)
		}
	}
	for _, tt := range calls {
		t.Run(tt.name, func(t *testing.T) {
			t.Run("the server receives the trace of Caddy's span", func(t *testing.T) {
				_, trace := traceparentIn(t, tt.echo(t, `"_meta":{"x":1}`))
				check(t, spans.span(t, trace), tt.server)
			})
			t.Run("the trace of the client continues", func(t *testing.T) {
				const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
				_, got := traceparentIn(t, tt.echo(t, `"_meta":{"x":1}`, "Traceparent: 00-"+trace+"-00f067aa0ba902b7-01"))
				if got != trace {
					t.Errorf("got the trace %s, want the client's", got)
				}
			})
			t.Run("a traceparent in the client's message is unchanged", func(t *testing.T) {
				got, _ := traceparentIn(t, tt.echo(t, `"_meta":{"traceparent":"`+clientTraceparent+`","tracestate":"a=b"}`))
				if got != clientTraceparent {
					t.Errorf("the server received %s", got)
				}
			})
		})
	}
	t.Run("a server over HTTP also receives a header", func(t *testing.T) {
		for _, m := range far.Seen("tools/call") {
			_, trace := traceparentIn(t, paramsOf(t, m.Body))
			if strings.Contains(m.Body, clientTraceparent) {
				continue
			}
			if got := traceparents.FindStringSubmatch(m.Header.Get("Traceparent")); got == nil || got[1] != trace {
				t.Errorf("header %q, message %s", m.Header.Get("Traceparent"), m.Body)
			}
		}
	})
	t.Run("an error sets the status of the span", func(t *testing.T) {
		const trace = "11111111111111111111111111111111"
		post(t, rpcAt(url, "old"), toolCall{"nope", `{}`}.request(), "Traceparent: 00-"+trace+"-00f067aa0ba902b7-01")
		span := spans.span(t, trace)
		if span.attributes["error.type"] == "" || span.attributes["rpc.jsonrpc.error_code"] != "-32602" ||
			span.attributes["gen_ai.tool.name"] != "nope" {
			t.Errorf("got %v", span.attributes)
		}
		if span.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR {
			t.Errorf("status %v", span.GetStatus())
		}
	})
	t.Run("spans contain no arguments and no results", func(t *testing.T) {
		const trace, secret = "22222222222222222222222222222222", "geheim"
		post(t, rpcAt(url, "old"), toolCall{"echo", `{"text":"` + secret + `"}`}.request(), "Traceparent: 00-"+trace+
			"-00f067aa0ba902b7-01")
		if text := fmt.Sprint(spans.span(t, trace)); strings.Contains(text, secret) {
			t.Errorf("got %s, want no secret in the span", text)
		}
	})
}

func paramsOf(t *testing.T, message string) string {
	t.Helper()
	var m struct{ Params json.RawMessage }
	if err := json.Unmarshal([]byte(message), &m); err != nil {
		t.Fatal(err)
	}
	return string(m.Params)
}

// Without tracing, messages are unchanged.
func TestOperateTracingOff(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(child("old")))
	for _, params := range []string{`{"name":"echo","arguments":{"text":"x"}}`,
		`{"name":"echo","arguments":{},"_meta":{"traceparent":"` + clientTraceparent + `"}}`} {
		got := post(t, rpcAt(url, "old"), rpc("tools/call", params), "Traceparent: "+clientTraceparent)
		same(t, toolText(t, got.body), params)
	}
}
