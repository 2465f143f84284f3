package mcptest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// answer is a response with its body.
type answer struct {
	*http.Response
	body string
}

// send sends a request over a real connection. It adds no Accept-Encoding, so that a compressed
// body stays compressed.
func send(t *testing.T, method, url, body string, headers map[string]string) answer {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return answer{res, string(got)}
}

// call returns the request of a tool, with id 1.
func call(name, arguments string) string {
	return fmt.Sprintf(
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`,
		name,
		arguments,
	)
}

func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func TestStubReplies(t *testing.T) {
	tests := []struct {
		name        string
		resultFirst bool
		request     string
		status      int
		want        string
	}{
		{
			name: "echo returns params token for token",
			request: `{"jsonrpc":"2.0","id":1,"method":"echo","params":{ "b":1.0e2, "a":"\u00e9<&>\/", ` +
				`"a":12345678901234567890 }}`,
			status: 200,
			want:   `{"jsonrpc":"2.0","id":1,"result":{ "b":1.0e2, "a":"\u00e9<&>\/", "a":12345678901234567890 }}`,
		},
		{
			name:    "the id is returned unchanged",
			request: `{"id":"req-\u0031<","method":"echo","params":[]}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":"req-\u0031<","result":[]}`,
		},
		{
			name:    "absent id and params are null",
			request: `{"method":"echo"}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":null,"result":null}`,
		},
		{
			name:        "the result comes first with ResultFirst",
			resultFirst: true,
			request:     `{"jsonrpc":"2.0","id":7,"method":"echo","params":{"a":1}}`,
			status:      200,
			want:        `{"result":{"a":1},"jsonrpc":"2.0","id":7}`,
		},
		{
			name:        "errors keep their order with ResultFirst",
			resultFirst: true,
			request:     `{"jsonrpc":"2.0","id":7,"method":"err","params":{"n":3}}`,
			status:      200,
			want:        `{"jsonrpc":"2.0","id":7,"error":{"code":-32050,"message":"boom","data":"EEE"}}`,
		},
		{
			name:    "big repeats A by default",
			request: `{"id":1,"method":"big","params":{"n":10000}}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("A", 10000) + `"}`,
		},
		{
			name:    "big repeats any string, with its spelling",
			request: `{"id":1,"method":"big","params":{"n":2,"c":"\ud83d\ude00é<\n"}}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"result":"\ud83d\ude00é<\n\ud83d\ude00é<\n"}`,
		},
		{
			name:    "big with n 0 is an empty string",
			request: `{"id":1,"method":"big"}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"result":""}`,
		},
		{
			name:    "big refuses a negative count",
			request: `{"id":1,"method":"big","params":{"n":-1}}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"n must not be negative"}}`,
		},
		{
			name:    "big refuses values that are not strings",
			request: `{"id":1,"method":"big","params":{"n":1,"c":5}}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"c must be a string"}}`,
		},
		{
			name:    "err has data of the requested length",
			request: `{"id":1,"method":"err","params":{"n":10000}}`,
			status:  200,
			want: `{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":"boom","data":"` + strings.Repeat(
				"E",
				10000,
			) +
				`"}}`,
		},
		{
			name:    "sleep returns true",
			request: `{"id":1,"method":"sleep","params":{"ms":1}}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"result":true}`,
		},
		{
			name:    "an unknown method is an error",
			request: `{"id":1,"method":"nope"}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"method not found: nope"}}`,
		},
		{
			name:    "an invalid status is refused",
			request: `{"id":1,"method":"raw","params":{"status":42}}`,
			status:  200,
			want:    `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"status must have three digits"}}`,
		},
		{
			name:    "a body that is not JSON gets 400",
			request: `{"jsonrpc":`,
			status:  400,
			want:    `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: unexpected end of JSON input"}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, &mcptest.Stub{ResultFirst: tt.resultFirst})
			got := send(t, "POST", url+"/rpc", tt.request, nil)
			if got.StatusCode != tt.status || got.body != tt.want {
				t.Errorf("got %d %.300s\nwant %d %.300s", got.StatusCode, got.body, tt.status, tt.want)
			}
			if ctype := got.Header.Get("Content-Type"); ctype != "application/json" {
				t.Errorf("Content-Type %q", ctype)
			}
			if got.ContentLength != int64(len(tt.want)) {
				t.Errorf("Content-Length %d, want %d", got.ContentLength, len(tt.want))
			}
		})
	}
}

func TestStubNote(t *testing.T) {
	got := send(t, "POST", serve(t, new(mcptest.Stub)), `{"jsonrpc":"2.0","method":"note"}`, nil)
	if got.StatusCode != 202 || got.body != "" {
		t.Errorf("got %d %q, want an empty 202", got.StatusCode, got.body)
	}
}

func TestStubRaw(t *testing.T) {
	const large = 100_000 // more than net/http buffers
	tests := []struct {
		name           string
		method         string // default POST
		acceptEncoding string
		params         string
		status         int
		ctype          string
		length         int64 // -1 for none
		header         map[string]string
		unzip          bool
		body           string
	}{
		{
			name:   "a body without settings is JSON with status 200",
			params: `{"body":"{}"}`,
			status: 200, ctype: "application/json", length: 2, body: "{}",
		},
		{
			name:   "status, type, headers and body are sent unchanged",
			params: `{"status":418,"ctype":"text/html; charset=x","body":"<p>\u00e9","headers":{"ETag":"\"v1\"","X-A":"b"}}`,
			status: 418, ctype: "text/html; charset=x", length: 5, body: "<p>é",
			header: map[string]string{"ETag": `"v1"`, "X-A": "b"},
		},
		{
			name:   "a redirect",
			params: `{"status":302,"headers":{"Location":"/elsewhere"}}`,
			status: 302, ctype: "application/json", length: 0,
			header: map[string]string{"Location": "/elsewhere"},
		},
		{
			name:   "an empty ctype sends none",
			params: `{"ctype":"","body":"<html>"}`,
			status: 200, ctype: "", length: 6, body: "<html>",
		},
		{
			name:   "a large body has a Content-Length",
			params: fmt.Sprintf(`{"body":%q}`, strings.Repeat("x", large)),
			status: 200, ctype: "application/json", length: large, body: strings.Repeat("x", large),
		},
		{
			name:   "a chunked body has no length",
			params: `{"chunked":true,"body":"{}"}`,
			status: 200, ctype: "application/json", length: -1, body: "{}",
		},
		{
			name:   "204 has no body and keeps its headers",
			params: `{"status":204,"body":"dropped","headers":{"X-A":"b"}}`,
			status: 204, ctype: "application/json", length: 0,
			header: map[string]string{"X-A": "b"},
		},
		{
			name:   "304 has no body and keeps its headers",
			params: `{"status":304,"body":"dropped","headers":{"ETag":"\"v1\""}}`,
			status: 304, ctype: "", length: 0,
			header: map[string]string{"ETag": `"v1"`},
		},
		{
			name:   "HEAD gets the headers without the body",
			method: "HEAD",
			params: `{"body":"12345","headers":{"ETag":"\"v1\""}}`,
			status: 200, ctype: "application/json", length: 5,
			header: map[string]string{"ETag": `"v1"`},
		},
		{
			name:           "gzip compresses for a client that accepts it",
			acceptEncoding: "br;q=1.0, gzip;q=0.5",
			params:         `{"gzip":true,"body":"{}"}`,
			status:         200, ctype: "application/json", unzip: true, body: "{}",
			header: map[string]string{"Content-Encoding": "gzip"},
		},
		{
			name:   "gzip does nothing without Accept-Encoding",
			params: `{"gzip":true,"body":"{}"}`,
			status: 200, ctype: "application/json", length: 2, body: "{}",
			header: map[string]string{"Content-Encoding": ""},
		},
		{
			name:           "gzip does nothing for a client that refuses it",
			acceptEncoding: "*, gzip;q=0",
			params:         `{"gzip":true,"body":"{}"}`,
			status:         200, ctype: "application/json", length: 2, body: "{}",
			header: map[string]string{"Content-Encoding": ""},
		},
		{
			name:           "encoding compresses for every client",
			acceptEncoding: "identity",
			params:         `{"encoding":"gzip","body":"{}"}`,
			status:         200, ctype: "application/json", unzip: true, body: "{}",
			header: map[string]string{"Content-Encoding": "gzip"},
		},
		{
			name:           "a compressed body can be chunked",
			acceptEncoding: "*",
			params:         `{"gzip":true,"chunked":true,"body":"{}"}`,
			status:         200, ctype: "application/json", unzip: true, length: -1, body: "{}",
			header: map[string]string{"Content-Encoding": "gzip"},
		},
	}
	url := serve(t, new(mcptest.Stub))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			headers := map[string]string{}
			if tt.acceptEncoding != "" {
				headers["Accept-Encoding"] = tt.acceptEncoding
			}
			method := "POST"
			if tt.method != "" {
				method = tt.method
			}
			got := send(t, method, url, `{"id":1,"method":"raw","params":`+tt.params+`}`, headers)

			length := tt.length
			if tt.unzip {
				if length == 0 {
					length = int64(len(got.body))
				}
				got.body = unzip(t, got.body)
			}
			if got.StatusCode != tt.status {
				t.Errorf("status %d, want %d", got.StatusCode, tt.status)
			}
			if got.body != tt.body {
				t.Errorf("body %.100q, want %.100q", got.body, tt.body)
			}
			if got.ContentLength != length {
				t.Errorf("length %d, want %d", got.ContentLength, length)
			}
			if ctype := got.Header.Get("Content-Type"); ctype != tt.ctype {
				t.Errorf("Content-Type %q, want %q", ctype, tt.ctype)
			}
			for name, want := range tt.header {
				if value := got.Header.Get(name); value != want {
					t.Errorf("%s %q, want %q", name, value, want)
				}
			}
		})
	}
}

func unzip(t *testing.T, body string) string {
	t.Helper()
	zr, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(zr)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

func TestStubRecordsWhatItReceived(t *testing.T) {
	stub := new(mcptest.Stub)
	url := serve(t, stub)

	if got := stub.Last(); !reflect.DeepEqual(got, mcptest.Request{}) {
		t.Errorf("before the first request: %+v", got)
	}
	if got := send(t, "GET", url+"/__count", "", nil); got.body != "0" {
		t.Errorf("count %q, want 0", got.body)
	}

	body := "{\"id\":1, \"method\":\"echo\", \"params\":\"\xff<\"}"
	send(t, "PUT", url+"/first", `no message at all`, nil)
	send(t, "POST", url+"/custom/path", body, map[string]string{"Mcp-Session-Id": "abc"})

	last := stub.Last()
	if last.Method != "POST" || last.Path != "/custom/path" || last.Body != body {
		t.Errorf("got %+v", last)
	}
	for name, want := range map[string]string{
		"Mcp-Session-Id": "abc",
		"Host":           strings.TrimPrefix(url, "http://"),
		"Content-Length": fmt.Sprint(len(body)),
	} {
		if got := last.Headers.Get(name); got != want {
			t.Errorf("%s %q, want %q", name, got, want)
		}
	}

	var remote mcptest.Request
	if err := json.Unmarshal([]byte(send(t, "GET", url+"/__last", "", nil).body), &remote); err != nil {
		t.Fatal(err)
	}
	last.Body = strings.ToValidUTF8(last.Body, "\ufffd")
	if !reflect.DeepEqual(remote, last) {
		t.Errorf("/__last gives %+v\nwant %+v", remote, last)
	}
	if got := send(t, "GET", url+"/__count", "", nil); got.body != "2" || stub.Count() != 2 {
		t.Errorf("count %q and %d, want 2", got.body, stub.Count())
	}
}

func TestStubRecordsTransferEncoding(t *testing.T) {
	stub := new(mcptest.Stub)
	// A reader of unknown length makes the client send chunks.
	body := io.MultiReader(strings.NewReader(`{"id":1,"method":"echo"}`))
	res, err := http.Post(serve(t, stub), "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got := stub.Last().Headers.Get("Transfer-Encoding"); got != "chunked" {
		t.Errorf("Transfer-Encoding %q, want chunked", got)
	}
}

func TestStubReset(t *testing.T) {
	for _, n := range []int{100, 3 << 20} {
		t.Run(fmt.Sprintf("a result of %d characters", n), func(t *testing.T) {
			url := serve(t, new(mcptest.Stub))
			res, err := http.Post(url, "application/json",
				strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"reset","params":{"n":%d}}`, n)))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			whole := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("A", n) + `"}`
			if res.StatusCode != 200 || res.ContentLength != int64(len(whole)) {
				t.Errorf("status %d, length %d, want 200, %d", res.StatusCode, res.ContentLength, len(whole))
			}
			got, err := io.ReadAll(res.Body)
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("error %v, want a connection reset", err)
			}
			// Bytes that the kernel had not sent before the reset are lost, but a short response is in the
			// first packet.
			if len(got) == 0 || !strings.HasPrefix(whole[:len(whole)/2], string(got)) {
				t.Errorf("got %d bytes, want a part of the first half of %d", len(got), len(whole))
			}
			if n == 100 && len(got) != len(whole)/2 {
				t.Errorf("got %d bytes, want half of %d", len(got), len(whole))
			}
		})
	}
}

func TestStubResetOverTLS(t *testing.T) {
	server := httptest.NewTLSServer(new(mcptest.Stub))
	defer server.Close()
	res, err := server.Client().Post(server.URL, "application/json", strings.NewReader(`{"id":1,"method":"reset"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("error %v, want a connection reset", err)
	}
}

func TestStubSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		w := httptest.NewRecorder()
		new(mcptest.Stub).ServeHTTP(w, httptest.NewRequest("POST", "/",
			strings.NewReader(`{"id":1,"method":"sleep","params":{"ms":5000}}`)))
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %v, want 5s", took)
		}
		if got := w.Body.String(); got != `{"jsonrpc":"2.0","id":1,"result":true}` {
			t.Errorf("got %s", got)
		}
	})
}

func TestStubStopsAfterADisconnect(t *testing.T) {
	for name, request := range map[string]string{
		"sleeping":       `{"id":1,"method":"sleep","params":{"ms":3600000}}`,
		"between events": `{"id":1,"method":"sse","params":{"interval_ms":3600000}}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				w := httptest.NewRecorder()
				new(mcptest.Stub).ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(request)))
				if took := time.Since(start); took != time.Second {
					t.Errorf("took %v, want 1s", took)
				}
				if strings.Contains(w.Body.String(), `"result"`) {
					t.Errorf("got response %s", w.Body)
				}
			})
		})
	}
}

// flushRecorder records the time of each flush and the bytes written since the previous one.
type flushRecorder struct {
	*httptest.ResponseRecorder
	start   time.Time
	events  []string
	offsets []time.Duration
}

func (f *flushRecorder) Flush() {
	f.events = append(f.events, f.Body.String())
	f.offsets = append(f.offsets, time.Since(f.start))
	f.Body.Reset()
}

func TestStubEvents(t *testing.T) {
	const ms = time.Millisecond
	notification := func(text string) string {
		return "event: message\ndata: " + `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info",` +
			`"data":"` + text + `"}}` + "\n\n"
	}
	content := func(text string) string { return `{"content":[{"type":"text","text":"` + text + `"}]}` }
	response := func(text string) string {
		return "event: message\ndata: " + `{"jsonrpc":"2.0","id":"x","result":` + content(text) + "}\n\n"
	}
	tests := []struct {
		name        string
		resultFirst bool
		params      string
		events      []string
		offsets     []time.Duration
	}{
		{
			name:    "three events 200 ms apart by default, the response last",
			params:  `{}`,
			events:  []string{notification("event 1"), notification("event 2"), response("event 3")},
			offsets: []time.Duration{0, 200 * ms, 400 * ms},
		},
		{
			name:    "requested number, interval and size",
			params:  `{"n":2,"interval_ms":1000,"size":5000}`,
			events:  []string{notification(strings.Repeat("A", 5000)), response(strings.Repeat("A", 5000))},
			offsets: []time.Duration{0, 1000 * ms},
		},
		{
			name:    "without an interval",
			params:  `{"n":3,"interval_ms":0,"size":0}`,
			events:  []string{notification(""), notification(""), response("")},
			offsets: []time.Duration{0, 0, 0},
		},
		{
			name:        "the result first",
			resultFirst: true,
			params:      `{"n":1}`,
			events: []string{
				"event: message\ndata: " + `{"result":` + content("event 1") + `,"jsonrpc":"2.0","id":"x"}` +
					"\n\n",
			},
			offsets: []time.Duration{0},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &flushRecorder{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
				stub := &mcptest.Stub{ResultFirst: tt.resultFirst}
				stub.ServeHTTP(w, httptest.NewRequest("POST", "/",
					strings.NewReader(`{"id":"x","method":"sse","params":`+tt.params+`}`)))
				if ctype := w.Header().Get("Content-Type"); ctype != "text/event-stream" {
					t.Errorf("Content-Type %q", ctype)
				}
				if !reflect.DeepEqual(w.events, tt.events) {
					t.Errorf("events %q\nwant %q", w.events, tt.events)
				}
				if !reflect.DeepEqual(w.offsets, tt.offsets) {
					t.Errorf("flushed at %v, want %v", w.offsets, tt.offsets)
				}
				if w.Body.Len() > 0 {
					t.Errorf("%d bytes after the last flush", w.Body.Len())
				}
			})
		})
	}
}

func TestStubServesManyAtOnce(t *testing.T) {
	stub := new(mcptest.Stub)
	url := serve(t, stub)
	const clients = 20
	answers := make(chan error, clients)
	for i := range clients {
		go func() {
			request := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"echo","params":%d}`, i, i)
			res, err := http.Post(url, "application/json", strings.NewReader(request))
			if err != nil {
				answers <- err
				return
			}
			defer res.Body.Close()
			var got bytes.Buffer
			_, err = got.ReadFrom(res.Body)
			if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%d}`, i, i); err == nil && got.String() != want {
				err = fmt.Errorf("got %s, want %s", &got, want)
			}
			_ = stub.Last()
			answers <- err
		}()
	}
	for range clients {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if stub.Count() != clients {
		t.Errorf("count %d, want %d", stub.Count(), clients)
	}
}
