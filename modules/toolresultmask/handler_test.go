package toolresultmask

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provision provisions a handler from its JSON configuration.
func provision(t *testing.T, config string) *Handler {
	t.Helper()
	h := new(Handler)
	if err := caddy.StrictUnmarshalJSON([]byte(config), h); err != nil {
		t.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	t.Cleanup(func() { _ = h.Cleanup() })
	if err := h.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Validate(); err != nil {
		t.Fatal(err)
	}
	return h
}

// turns returns a conversation with a tool result for each of the contents.
func turns(contents ...string) string {
	var messages []string
	for i, content := range contents {
		messages = append(messages,
			fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":"call_%d","type":"function","function":{"name":"read",`+
				`"arguments":"{}"}}]}`, i),
			fmt.Sprintf(`{"role":"tool","tool_call_id":"call_%d","content":"%s"}`, i, content))
	}
	return `{"messages":[` + strings.Join(messages, ",") + `]}`
}

const placeholder = "[Observation masquée: résultat d’outil ancien (tool_call_id=call_0, outil=read, chars=4)]"

// receivedRequest is a request as the next handler received it.
type receivedRequest struct {
	body, again string // from Body and from GetBody
	err         error  // from reading Body
	length      int64
	header      http.Header
}

// send sends a request through h. It returns the request that the next handler received, and the
// response.
func send(t *testing.T, h *Handler, r *http.Request, answer func(http.ResponseWriter)) (s receivedRequest,
	w *httptest.ResponseRecorder) {
	t.Helper()
	w = httptest.NewRecorder()
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		s = receivedRequest{body: string(body), err: err, length: r.ContentLength, header: r.Header}
		if r.GetBody != nil {
			again, err := r.GetBody()
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(again)
			s.again = string(body)
		}
		if answer != nil {
			answer(w)
		}
		return nil
	})
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	if err := h.ServeHTTP(w, r, next); err != nil {
		t.Fatal(err)
	}
	if use := heldConversations.Usage(); use.Entries != 0 || use.Bytes != 0 {
		t.Errorf("still held: %+v", use)
	}
	return s, w
}

func post(body string) *http.Request {
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

func TestRequestIsMasked(t *testing.T) {
	h := provision(t, `{"window_turns":1}`)
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8", "application/vnd.x+json",
		""} {
		r := post(turns("AAAA", "BBBB"))
		r.Header.Set("Content-Type", contentType)
		got, _ := send(t, h, r, nil)
		if want := turns(placeholder, "BBBB"); got.body != want || got.length != int64(len(want)) ||
			got.header.Get("Content-Length") != fmt.Sprint(len(want)) {
			t.Errorf("%q: sent %d %s", contentType, got.length, got.body)
		}
		// A transport may send the request again.
		if got.again != got.body {
			t.Errorf("%q: again %s", contentType, got.again)
		}
	}
}

func TestRequestPasses(t *testing.T) {
	body := turns("AAAA", "BBBB")
	for _, test := range []struct {
		name, config string
		change       func(*http.Request)
	}{
		{"T2 disabled", `{"window_turns":1,"enabled":false}`, nil},
		{"T3 without a window", `{"window_turns":0}`, nil},
		{"T3 with a negative window", `{"window_turns":-1}`, nil},
		{"T29 another method", `{"window_turns":1}`, func(r *http.Request) { r.Method = "PUT" }},
		{"T29 another type", `{"window_turns":1}`, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }},
		{"T24 over the limit", fmt.Sprintf(`{"window_turns":1,"buffer_limit":%d}`, len(body)-1), nil},
		{"T24 over the limit, without a length", fmt.Sprintf(`{"window_turns":1,"buffer_limit":%d}`, len(body)-1),
			func(r *http.Request) { r.ContentLength = -1 }},
		{"T24 over the limit of all requests", fmt.Sprintf(`{"window_turns":1,"max_buffered":%d}`, len(body)-1), nil},
		{"T24 over the limit of all requests, without a length", `{"window_turns":1,"max_buffered":10}`,
			func(r *http.Request) { r.ContentLength = -1 }},
		{"T24 a wrong encoding", `{"window_turns":1}`, func(r *http.Request) {
			r.Header.Set("Content-Encoding", "gzip")
		}},
		{"T24 an unknown encoding", `{"window_turns":1}`, func(r *http.Request) {
			r.Header.Set("Content-Encoding", "rot13")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := post(body)
			if test.change != nil {
				test.change(r)
			}
			header, length := r.Header.Clone(), r.ContentLength
			got, _ := send(t, provision(t, test.config), r, nil)
			if got.body != body || got.length != length || fmt.Sprint(got.header) != fmt.Sprint(header) {
				t.Errorf("sent %d %s %v", got.length, got.body, got.header)
			}
		})
	}
	t.Run("exactly as long as the limit", func(t *testing.T) {
		got, _ := send(t, provision(t, fmt.Sprintf(`{"window_turns":1,"buffer_limit":%d}`, len(body))), post(body), nil)
		if got.body == body {
			t.Error("the request was not masked")
		}
	})
}

// Error handlers get the request as the next handlers did: masked, and with a body.
func TestRequestAfterAnError(t *testing.T) {
	for _, body := range []string{turns("AAAA", "BBBB"), turns("AAAA")} {
		failure := errors.New("no upstream")
		w := httptest.NewRecorder()
		r := caddyhttp.PrepareRequest(post(body), caddy.NewReplacer(), w, new(caddyhttp.Server))
		err := provision(t, `{"window_turns":1}`).ServeHTTP(w, r,
			caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return failure }))
		left, _ := io.ReadAll(r.Body)
		if want := strings.Replace(body, `"AAAA"},{`, `"`+placeholder+`"},{`, 1); err != failure || string(left) != want ||
			r.ContentLength != int64(len(want)) {
			t.Errorf("%v, %d %s", err, r.ContentLength, left)
		}
	}
}

// T24: the next handler gets the part of an interrupted request that arrived, and then the error.
func TestInterruptedRequest(t *testing.T) {
	broke := errors.New("connection reset")
	h := provision(t, `{"window_turns":1}`)
	body := turns("AAAA", "BBBB")
	for _, length := range []int64{int64(len(body)) + 1, -1} {
		r := post("")
		r.Body = io.NopCloser(io.MultiReader(iotest.OneByteReader(strings.NewReader(body)), iotest.ErrReader(broke)))
		r.ContentLength = length
		before := count(passedConversations, string(unreadable))
		got, _ := send(t, h, r, nil)
		if got.body != body || !errors.Is(got.err, broke) || got.length != length {
			t.Errorf("sent %d %s, %v", got.length, got.body, got.err)
		}
		if n := count(passedConversations, string(unreadable)) - before; n != 1 {
			t.Errorf("counted %v times, want 1", n)
		}
	}
}

// A compressed request counts as received and as decoded.
func TestMemoryOfCompressedRequests(t *testing.T) {
	var compressed bytes.Buffer
	zw := gzip.NewWriter(&compressed)
	_, _ = zw.Write([]byte(turns("AAAA", "BBBB")))
	_ = zw.Close()
	whole := compressed.Len() + 1 + 4<<10 + 1 // both, with a byte to detect the end; 4 KiB without a known length
	for limit, want := range map[int]string{whole: turns(placeholder, "BBBB"), whole - 1: compressed.String(),
		compressed.Len(): compressed.String()} {
		r := post(compressed.String())
		r.Header.Set("Content-Encoding", "gzip")
		before := count(passedConversations, string(memoryFull))
		got, _ := send(t, provision(t, fmt.Sprintf(`{"window_turns":1,"max_buffered":%d}`, limit)), r, nil)
		if got.body != want {
			t.Errorf("limit %d: sent %q", limit, got.body)
		}
		if passed := count(passedConversations, string(memoryFull)) > before; passed == (limit == whole) {
			t.Errorf("limit %d: passed %t", limit, passed)
		}
	}
}

// One network cannot use all of max_buffered.
func TestMemoryOfOneAddress(t *testing.T) {
	body := turns("AAAA", "BBBB")
	h := provision(t, fmt.Sprintf(`{"window_turns":1,"buffer_limit":%d,"max_buffered":%d}`, len(body), 5*len(body)))
	serve := func(address string, then func()) (sent string) {
		w, r := httptest.NewRecorder(), post(body)
		r.RemoteAddr = address
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
		if err := h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) error {
			text, err := io.ReadAll(r.Body)
			sent = string(text)
			then()
			return err
		})); err != nil {
			t.Error(err)
		}
		return sent
	}
	masked := turns(placeholder, "BBBB")
	serve("[2001:db8::1]:1", func() {
		serve("[2001:db8::2]:2", func() {
			if got := serve("[2001:db8::3]:3", func() {}); got != body {
				t.Errorf("a third request from the same network: %q", got)
			}
			if got := serve("192.0.2.1:1", func() {}); got != masked {
				t.Errorf("a request from another network: %q", got)
			}
		})
	})
	if got := serve("[2001:db8::3]:3", func() {}); got != masked {
		t.Errorf("after the other requests: %q", got)
	}
	if use := heldConversations.Usage(); use.Entries != 0 || use.Bytes != 0 {
		t.Errorf("still held: %+v", use)
	}
}

const chatAnswer = `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2,` +
	`"prompt_tokens_details":{"cached_tokens":7}}}`

// count returns the value of a counter.
func count(c *prometheus.CounterVec, labels ...string) float64 {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.WithLabelValues(labels...))
	families, _ := registry.Gather()
	return families[0].Metric[0].Counter.GetValue()
}

// usageOf returns the counted tokens of a route: input, cached, cache_write, output.
func usageOf(route string) string {
	var out []string
	for _, kind := range []string{"input", "cached", "cache_write", "output"} {
		out = append(out, fmt.Sprint(count(usageTokens, route, kind)))
	}
	return strings.Join(out, " ")
}

// T26, T38: responses pass unchanged, however they are written, and their usage is read.
func TestResponse(t *testing.T) {
	var compressed bytes.Buffer
	zw := gzip.NewWriter(&compressed)
	_, _ = zw.Write([]byte(chatAnswer))
	_ = zw.Close()
	for _, test := range []struct {
		name                  string
		contentType, encoding string
		body, want            string
		write                 func(http.ResponseWriter, string)
	}{
		{"written at once", "application/json", "", chatAnswer, "10 7 0 2", nil},
		{"byte by byte", "application/json", "", chatAnswer, "10 7 0 2", func(w http.ResponseWriter, body string) {
			for i := range len(body) {
				_, _ = io.WriteString(w, body[i:i+1])
			}
		}},
		{"with io.Copy", "application/json", "", chatAnswer, "10 7 0 2", func(w http.ResponseWriter, body string) {
			_, _ = io.Copy(w, strings.NewReader(body))
		}},
		{"with a status", "application/json", "", chatAnswer, "10 7 0 2", func(w http.ResponseWriter, body string) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, body)
		}},
		{"compressed", "application/json", "gzip", compressed.String(), "10 7 0 2", nil},
		{"compressed and cut short", "application/json", "gzip", compressed.String()[:30], "0 0 0 0", nil},
		{"with a wrong encoding", "application/json", "br", chatAnswer, "0 0 0 0", nil},
		{"with an unknown encoding", "application/json", "rot13", chatAnswer, "0 0 0 0", nil},
		{"events", "text/event-stream", "", "data: " + chatAnswer + "\n\ndata: [DONE]\n\n", "10 7 0 2", nil},
		{"HTML", "text/html", "", "<html>", "0 0 0 0", nil},
		{"no response", "", "", "", "0 0 0 0", func(http.ResponseWriter, string) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			route := rand.Text() // counters live as long as the process
			h := provision(t, `{"window_turns":0,"route":"`+route+`"}`)
			_, w := send(t, h, post("{}"), func(w http.ResponseWriter) {
				for name, value := range map[string]string{"Content-Type": test.contentType, "Content-Encoding": test.encoding} {
					if value != "" {
						w.Header().Set(name, value)
					}
				}
				if test.write != nil {
					test.write(w, test.body)
					return
				}
				_, _ = io.WriteString(w, test.body)
			})
			if w.Body.String() != test.body {
				t.Errorf("got response %q", w.Body)
			}
			if got := usageOf(route); got != test.want {
				t.Errorf("usage %s, want %s", got, test.want)
			}
		})
	}
}

// reverse_proxy panics when a response breaks off. The usage read by then counts, and goleak checks
// that the decoder ends.
func TestInterruptedResponse(t *testing.T) {
	route := rand.Text()
	h := provision(t, `{"route":"`+route+`"}`)
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("panic %v", p)
		}
		if got := usageOf(route); got != "10 7 0 2" {
			t.Errorf("usage %s", got)
		}
	}()
	send(t, h, post("{}"), func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		zw := gzip.NewWriter(w)
		_, _ = io.WriteString(zw, "data: "+chatAnswer+"\n\n")
		_ = zw.Flush()
		panic(http.ErrAbortHandler)
	})
}

// A decompression bomb is read only up to a limit.
func TestDecompressionBomb(t *testing.T) {
	var bomb bytes.Buffer
	zw, _ := gzip.NewWriterLevel(&bomb, gzip.BestCompression)
	_, _ = zw.Write([]byte(`{"a":"`))
	for range 2 * maxObserved >> 20 {
		_, _ = zw.Write(bytes.Repeat([]byte("A"), 1<<20))
	}
	_, _ = zw.Write([]byte(`",` + chatAnswer[1:]))
	_ = zw.Close()
	h := provision(t, `{"route":"bomb"}`)
	_, w := send(t, h, post("{}"), func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb.Bytes())
	})
	if !bytes.Equal(w.Body.Bytes(), bomb.Bytes()) {
		t.Error("the response was changed")
	}
	if got := usageOf("bomb"); got != "0 0 0 0" {
		t.Errorf("usage %s", got)
	}
}

func TestKeepErrorsAsJSON(t *testing.T) {
	for _, text := range []string{`{"keep_errors":true}`, `{"keep_errors":false}`, `{"keep_errors":"precise"}`} {
		h := provision(t, text)
		if out, err := json.Marshal(Handler{KeepErrors: h.KeepErrors}); string(out) != text || err != nil {
			t.Errorf("%s: got %s, %v", text, out, err)
		}
	}
}

// Reasons that an operator can fix are logged once as a warning, and then at the debug level, as
// are all others.
func TestReasonsAreLoggedOnce(t *testing.T) {
	orphan := strings.Replace(turns("AAAA", "BBBB"), `"tool_call_id":"call_0"`, `"tool_call_id":"x"`, 1)
	image := strings.Replace(turns("AAAA", "BBBB"), `"AAAA"`, `[{"type":"image_url"}]`, 1)
	signature := func(r *http.Request) { r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x") }
	for _, test := range []struct {
		name, config, body string
		change             func(*http.Request)
		reason             string
		warned             int
	}{
		{"signed", `{"window_turns":1}`, turns("AAAA", "BBBB"), signature, "signed", 1},
		{"too large", `{"window_turns":1,"buffer_limit":10}`, turns("AAAA", "BBBB"), nil, "too_large", 1},
		{"an encoding", `{"window_turns":1}`, turns("AAAA"), func(r *http.Request) {
			r.Header.Set("Content-Encoding", "rot13")
		}, "encoding", 1},
		{"an orphan", `{"window_turns":1}`, orphan, nil, "no_call", 1},
		{"an image", `{"window_turns":1}`, image, nil, "not_text", 0},
		{"embeddings", `{"window_turns":1}`, `{"input":"x"}`, nil, "shape", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := provision(t, test.config)
			core, logs := observer.New(zap.DebugLevel)
			h.logger = zap.New(core)
			for range 3 {
				r := post(test.body)
				if test.change != nil {
					test.change(r)
				}
				if got, _ := send(t, h, r, nil); got.body != test.body {
					t.Errorf("sent %s", got.body)
				}
			}
			entries := logs.FilterField(zap.String("reason", test.reason))
			if warned := entries.FilterLevelExact(zap.WarnLevel).Len(); entries.Len() != 3 || warned != test.warned {
				t.Errorf("%d entries, %d of them warnings, want 3 and %d", entries.Len(), warned, test.warned)
			}
		})
	}
}

func TestClearAtLeastAsJSON(t *testing.T) {
	for _, text := range []string{`{"clear_at_least":"auto"}`, `{"clear_at_least":2000}`, `{}`} {
		h := provision(t, text)
		if out, err := json.Marshal(Handler{ClearAtLeast: h.ClearAtLeast}); string(out) != text || err != nil {
			t.Errorf("%s: got %s, %v", text, out, err)
		}
	}
}

// A model may respond before it has read the request, and read on after the handler has returned.
// It must not get bytes of later requests, which may reuse the buffer.
func TestResponseBeforeTheRequestIsRead(t *testing.T) {
	const requests, size = 8, 8 << 20 // more than the buffers of a connection hold
	var mu sync.Mutex
	got := map[string]bool{}
	var reading sync.WaitGroup
	all := make(chan struct{}) // closed when all requests were sent
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer reading.Done()
		_ = http.NewResponseController(w).EnableFullDuplex()
		of := r.Header.Get("Of")
		_, _ = io.WriteString(w, "{}")
		_ = http.NewResponseController(w).Flush()
		<-all
		body, _ := io.ReadAll(r.Body)
		if !strings.HasPrefix(turns(strings.Repeat(of, size)), string(body)) {
			t.Errorf("request %s arrived with another body", of)
		}
		mu.Lock()
		defer mu.Unlock()
		got[of] = true
	}))
	defer model.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	h := provision(t, `{}`)
	var answers []io.Closer
	for i := range requests {
		of := string(rune('a' + i))
		reading.Add(1)
		w, r := httptest.NewRecorder(), post(turns(strings.Repeat(of, size)))
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
		if err := h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			out := r.Clone(r.Context())
			out.URL, _ = url.Parse(model.URL)
			out.RequestURI = ""
			out.Header.Set("Of", of)
			resp, err := transport.RoundTrip(out)
			if err != nil {
				return err
			}
			answers = append(answers, resp.Body) // closing it would end the request, too
			return nil
		})); err != nil {
			t.Error(err)
			reading.Done()
		}
	}
	close(all)
	reading.Wait()
	for _, answer := range answers {
		answer.Close()
	}
	if len(got) != requests {
		t.Errorf("%d requests arrived, want %d", len(got), requests)
	}
}

// The next request of a conversation is masked as if it were the first, and has no bytes of earlier
// ones.
func TestNextTurn(t *testing.T) {
	h := provision(t, `{"window_turns":1}`)
	var contents []string
	for i := range 40 {
		contents = append(contents, strings.Repeat(string(rune('A'+i%26)), 4000))
		body := turns(contents...)
		want, _ := send(t, provision(t, `{"window_turns":1}`), post(body), nil)
		got, _ := send(t, h, post(body), nil)
		if got.body != want.body || got.again != want.body || (len(got.body) < len(body)) != (i > 0) {
			t.Fatalf("turn %d: sent %d bytes, want %d", i, len(got.body), len(want.body))
		}
	}
	if use := rememberedConversations.Usage(); use.Entries == 0 {
		t.Errorf("no conversation is remembered: %+v", use)
	}
}

// reported returns the activity of the only route while a function runs.
func reported(t *testing.T, do func()) activity.Route {
	t.Helper()
	before := activity.Models
	defer func() { activity.Models = before }()
	activity.Models = activity.NewConversations()
	do()
	routes := activity.Models.Routes()
	if len(routes) != 1 {
		t.Fatalf("got %+v", routes)
	}
	return routes[0]
}

func respondWith(contentType, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

func TestConversationIsReported(t *testing.T) {
	h := provision(t, `{"window_turns":1,"route":"model"}`)
	long := strings.Repeat("A", 40_000)
	first, second := turns(long, "BBBB"), turns(long, "BBBB", "CCCC")
	var sent []receivedRequest
	got := reported(t, func() {
		for _, body := range []string{turns(long), first, first, second} {
			s, _ := send(t, h, post(body), respondWith("application/json",
				`{"usage":{"prompt_tokens":1000,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":600}}}`))
			sent = append(sent, s)
		}
	})
	before, after := len(turns(long))+2*len(first)+len(second), 0
	for _, s := range sent {
		after += len(s.body)
	}
	if got.Route != "model" || got.Requests != 4 || got.Masked != 3 || got.Results != 4 || got.SavedChars < 100_000 ||
		got.BytesBefore != int64(before) || got.BytesAfter != int64(after) || after > before/3 {
		t.Errorf("%d bytes, %d sent: got %+v", before, after, got)
	}
	if want := (activity.Usage{Input: 4000, Cached: 2400, Output: 8}); got.Usage != want || got.TokensAfter != 4000 {
		t.Errorf("got %+v", got)
	}
	want := int64(1000)
	for i, body := range []string{first, first, second} {
		want += int64(1000 * float64(len(body)) / float64(len(sent[i+1].body)))
	}
	if diff := got.TokensBefore - want; diff < 0 || diff > 3 { // each request is rounded
		t.Errorf("got %d tokens before, want %d", got.TokensBefore, want)
	}
	// Two requests mask results for the first time. The first of them is sent twice and counts
	// twice, because a repetition is not recognized.
	if len(got.Moves) != 3 || got.Moves[0].Results != 2 || got.Moves[2].Results != 1 || got.Moves[0].Cached != 600 ||
		got.Moves[0].Input != 1000 || got.Moves[0].Cost != got.Cost/4 || got.Moves[0].CostBefore == 0 {
		t.Errorf("got %+v", got.Moves)
	}
}

func TestReportedTokens(t *testing.T) {
	long := strings.Repeat("A", 40_000)
	body, short := turns(long, "BBBB"), turns("AAAA")
	for _, test := range []struct {
		name          string
		body          string
		answer        func(http.ResponseWriter)
		bytes         int
		before, after int64
	}{
		{"reported usage", short, respondWith("application/json", `{"usage":{"input_tokens":10,`+
			`"cache_read_input_tokens":70,"cache_creation_input_tokens":20}}`), len(short), 100, 100},
		{"a stream without usage", short, respondWith("text/event-stream", "data: {}\n\n"), len(short),
			int64(len(short) / 4), int64(len(short) / 4)},
		{"a refused request", body, respondWith("application/json", `{"error":{"message":"overloaded"}}`), len(body),
			0, 0},
		{"no response", body, func(http.ResponseWriter) {}, len(body), 0, 0},
		{"not a conversation", `{"input":"x"}`, respondWith("application/json", `{"usage":{"prompt_tokens":3}}`), 13, 3,
			3},
		{"not JSON", `no`, respondWith("application/json", chatAnswer), 2, 10, 10},
		{"an empty request", ``, respondWith("application/json", chatAnswer), 0, 10, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := provision(t, `{"window_turns":1}`)
			got := reported(t, func() { send(t, h, post(test.body), test.answer) })
			if got.Requests != 1 || got.BytesBefore != int64(test.bytes) || got.TokensBefore != test.before ||
				got.TokensAfter != test.after ||
				got.Masked == 0 && got.BytesAfter != got.BytesBefore {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A request that is too large to mask passes unchanged, and is reported.
func TestPassedRequestIsReported(t *testing.T) {
	h := provision(t, `{"window_turns":1,"buffer_limit":100}`)
	body := turns(strings.Repeat("A", 1000), "BBBB")
	for _, length := range []int64{int64(len(body)), -1} {
		got := reported(t, func() {
			r := post(body)
			r.ContentLength = length
			send(t, h, r, respondWith("application/json", chatAnswer))
		})
		if got.Requests != 1 || got.Masked != 0 || got.BytesBefore != got.BytesAfter || got.BytesBefore < 100 ||
			length > 0 && got.BytesBefore != length ||
			got.TokensBefore != 10 || got.TokensAfter != 10 || len(got.Moves) > 0 {
			t.Errorf("length %d: got %+v", length, got)
		}
	}
}

// With two masks, the outer one reports the request, with the changes of both.
func TestNestedMasksReportOnce(t *testing.T) {
	outer, inner := provision(t, `{"window_turns":2,"route":"outer"}`), provision(t, `{"window_turns":1,"route":"inner"}`)
	long := strings.Repeat("A", 10_000)
	body := turns(long, long, "CCCC")
	failure := errors.New("no upstream")
	got := reported(t, func() {
		w := httptest.NewRecorder()
		r := caddyhttp.PrepareRequest(post(body), caddy.NewReplacer(), w, new(caddyhttp.Server))
		model := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return failure })
		behind := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			return inner.ServeHTTP(w, r, model)
		})
		if err := outer.ServeHTTP(w, r, behind); !errors.Is(err, failure) {
			t.Error(err)
		}
	})
	if got.Route != "outer" || got.Requests != 1 || got.Masked != 1 || got.Results < 2 || len(got.Moves) != 1 ||
		got.BytesBefore != int64(len(body)) || got.BytesAfter > 2000 || got.TokensAfter != 0 {
		t.Errorf("got %+v", got)
	}
}
