package observationmask

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// counted returns the value of a counter.
func counted(c *prometheus.CounterVec, labels ...string) float64 {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c.WithLabelValues(labels...))
	families, _ := registry.Gather()
	return families[0].Metric[0].GetCounter().GetValue()
}

func TestShortener(t *testing.T) {
	var log, records strings.Builder
	for i := range 1000 {
		line, note := fmt.Sprintf("INFO request %d served", i), "nothing"
		if i == 333 {
			line, note = "ERROR payment declined by the bank", "payment declined by the bank"
		}
		log.WriteString(line + "\n")
		fmt.Fprintf(&records, `,{"id": %d, "note": %q}`, i, note)
	}
	array := "[" + records.String()[1:] + "]"
	const goal, fact = "why the payment was declined", "payment declined by the bank"
	for _, test := range []struct {
		name, config, goal, text string
		has                      []string
		valid                    bool // the result is JSON
	}{
		{"a log by the goal", `{"recover":{}}`, goal, log.String(), []string{"334│ ERROR " + fact, "id=obs_",
			"recover_observation"}, false},
		{"a log without an original", `{}`, goal, log.String(), []string{"334│ ERROR " + fact, "lines="}, false},
		{"a log by its ends", `{"json":true}`, "", log.String(), []string{"INFO request 0 served", "head=2000 tail=2000]",
			"INFO request 999 served"}, false},
		{"records by the goal", `{"recover":{}}`, goal, array, []string{fact, "items left out id=obs_"}, true},
		{"records by their ends", `{"json":true}`, "", array, []string{`{"id":0,`, `{"id":999,`, "items left out]"}, true},
		{"records as a string", `{}`, "", array, []string{"head=2000 tail=2000]"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := provision(t, test.config)
			h.Server = "fs"
			recorder := httptest.NewRecorder()
			r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodPost, "/", nil), caddy.NewReplacer(), recorder,
				new(caddyhttp.Server))
			request := &Request{About: mcp.Target{Server: "fs", Kind: mcp.Tool, Name: "read"}, Goal: test.goal, Label: "ann"}
			labels := []string{"fs", "read", "ann"}
			count := func(c *prometheus.CounterVec) float64 { return counted(c, labels...) }
			calls, in, out := count(focusCalls), count(focusedIn), count(focusedOut)
			body, _ := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": test.text}}})
			err := h.ServeHTTP(recorder, With(r, request),
				caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					serveJSON(`{"jsonrpc":"2.0","id":1,"result":`+string(body)+`}`)(w, r)
					return nil
				}))
			var got struct {
				Result struct{ Content []struct{ Text string } }
			}
			if json.Unmarshal(recorder.Body.Bytes(), &got) != nil || err != nil {
				t.Fatalf("%v, %s", err, recorder.Body)
			}
			text := got.Result.Content[0].Text
			for _, want := range test.has {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if n := utf8.RuneCountInString(text); n > 4000+200 || test.goal != "" && n > 4000 {
				t.Errorf("%d characters left", n)
			}
			if json.Valid([]byte(text)) != test.valid {
				t.Errorf("valid JSON %t, want %t", !test.valid, test.valid)
			}
			focused := test.goal != ""
			chars := utf8.RuneCountInString(text)
			if !focused {
				chars = 0
			}
			if n := count(focusedOut) - out; n != float64(chars) {
				t.Errorf("counted %v characters after, want %d", n, chars)
			}
			if n := count(focusedIn) - in; n != float64(utf8.RuneCountInString(test.text)) && focused || !focused && n != 0 {
				t.Errorf("counted %v characters before", n)
			}
			if n := count(focusCalls) - calls; focused != (n == 1) {
				t.Errorf("counted %v calls", n)
			}
		})
	}
}

// An original counts as recovered once, for its tool and client.
func TestRecoveredIsCountedOnce(t *testing.T) {
	h := provision(t, `{"recover":{},"server":"counting"}`)
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodPost, "/", nil), caddy.NewReplacer(),
		httptest.NewRecorder(), new(caddyhttp.Server))
	r = With(r, &Request{About: mcp.Target{Kind: mcp.Tool, Name: "read"}, Goal: "x", Label: "ann"})
	handle := h.saver(r)([]byte("body"))
	labels := []string{"counting", "read", "ann", "yes"}
	if body, ok := h.Kept("", handle); !ok || string(body) != "body" || counted(recovered, labels...) != 0 {
		t.Errorf("an operator gets %s, %t; counted %v", body, ok, counted(recovered, labels...))
	}
	if _, ok := h.Kept("bob", handle); ok {
		t.Error("another owner has the original")
	}
	for range 2 {
		body, about, ok := h.Original("", handle)
		if !ok || string(body) != "body" || about != (mcp.Target{Server: "counting", Kind: mcp.Tool, Name: "read"}) {
			t.Fatalf("%s, %+v, %t", body, about, ok)
		}
	}
	if kept, read := counted(originals, labels...), counted(recovered, labels...); kept != 1 || read != 1 {
		t.Errorf("counted %v originals, %v recovered", kept, read)
	}
}

// Clients cannot create any number of labels.
func TestToolLabelsAreLimited(t *testing.T) {
	labels := toolLabels{known: map[[2]string]bool{}}
	for i := range maxToolLabels {
		labels.label("s", fmt.Sprint(i))
	}
	if got := labels.label("s", "more"); got != "other" {
		t.Errorf("got %q", got)
	}
	if got := labels.label("s", "7"); got != "7" {
		t.Errorf("got %q", got)
	}
}

// The time to shorten all texts of a response together is limited.
func TestShortenerTime(t *testing.T) {
	defer func(d time.Duration) { maxShortening = d }(maxShortening)
	maxShortening = 0
	s := &shortener{ctx: t.Context(), handler: provision(t, `{}`), request: &Request{Goal: "the payment"}}
	text := []byte(strings.Repeat(`nothing\npayment\n`, 1000))
	if first := s.Text(text, "", false); first == nil {
		t.Error("the first text was not shortened")
	}
	if second := s.Text(text, "", false); second != nil {
		t.Error("the second text was shortened")
	}
}

// The log may be written while the response begins. The race detector checks their shared state.
func TestLogBeforeResponse(t *testing.T) {
	h := provision(t, `{"json":true}`)
	recorder := httptest.NewRecorder()
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodPost, "/", nil), caddy.NewReplacer(), recorder,
		new(caddyhttp.Server))
	err := h.ServeHTTP(recorder, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		logged := make(chan error)
		go func() { logged <- w.(*responseWriter).MarshalLogObject(zapcore.NewMapObjectEncoder()) }()
		serveJSON(`{"jsonrpc":"2.0","id":1,"result":{}}`)(w, r)
		return <-logged
	}))
	if err != nil {
		t.Error(err)
	}
}
