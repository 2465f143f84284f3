package observationmask

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Caddy and its certificate cache start these once per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// provision provisions a handler from its JSON configuration.
func provision(t *testing.T, config string) *Handler {
	t.Helper()
	h := new(Handler)
	if err := json.Unmarshal([]byte(config), h); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := newContext(t)
	t.Cleanup(cancel)
	if err := h.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Validate(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func newContext(t *testing.T) (caddy.Context, context.CancelFunc) {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	return caddy.NewContext(ctx)
}

// front serves h in front of next, with the context that Caddy's server makes.
func front(t *testing.T, h *Handler, next caddyhttp.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
		if err := h.ServeHTTP(w, r, next); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// proxy serves h in front of a real reverse_proxy to upstream.
func proxy(t *testing.T, h *Handler, upstream http.Handler) *httptest.Server {
	t.Helper()
	// A server of net/http that responds before it has read the request closes the body. If reverse_proxy
	// has not sent all of it yet, it closes the connection.
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		upstream.ServeHTTP(w, r)
	}))
	t.Cleanup(up.Close)
	rp := &reverseproxy.Handler{Upstreams: reverseproxy.UpstreamPool{{Dial: up.Listener.Addr().String()}}}
	ctx, cancel := newContext(t)
	t.Cleanup(cancel)
	if err := rp.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rp.Cleanup() })
	return front(t, h, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		return rp.ServeHTTP(w, r, nil)
	}))
}

const request = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{}}}`

// post sends a request without decoding the response, and returns the response and its body.
func post(t *testing.T, server *httptest.Server, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func message(text string) string {
	b, _ := json.Marshal(text)
	return `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":` + string(b) + `}]}}`
}

// serveJSON returns a handler that serves a body as JSON.
func serveJSON(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Header().Set("ETag", `"raw"`)
		w.Header().Set("Last-Modified", "Sun, 15 Nov 2026 00:00:00 GMT")
		_, _ = io.WriteString(w, body)
	}
}

func isMasked(body string) bool { return strings.Contains(body, "[KIMI_PROXY_OBSERVATION_MASKED ") }

// The headers describe the body as it is sent (O14).
func TestHeadersMatchTheBody(t *testing.T) {
	long, short := message(strings.Repeat("x", 10000)), message("short")
	many := `{"jsonrpc":"2.0","result":[` + strings.Repeat(`"short",`, 50000) + `""]}`
	h := provision(t, `{}`)
	response, body := post(t, proxy(t, h, serveJSON(long)))
	if !isMasked(body) || response.ContentLength != int64(len(body)) || response.Header.Get("ETag") != "" {
		t.Errorf("masked: %d bytes, %v", len(body), response.Header)
	}
	if response.Header.Get("Last-Modified") == "" {
		t.Error("masked: lost a header that does not describe the body")
	}
	for _, text := range []string{short, many} {
		response, body = post(t, proxy(t, h, serveJSON(text)))
		if body != text || response.ContentLength != int64(len(text)) || response.Header.Get("ETag") != `"raw"` {
			t.Errorf("untouched: %d bytes, %v", len(body), response.Header)
		}
	}
}

// Responses with any supported encoding are masked (O15).
func TestAnyUpstreamEncoding(t *testing.T) {
	text := message(strings.Repeat("x", 100000))
	encode := map[string]func(io.Writer) io.WriteCloser{
		"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"br":   func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) },
		"zstd": func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z },
	}
	h := provision(t, `{}`)
	for encoding, open := range encode {
		t.Run(encoding, func(t *testing.T) {
			var encoded bytes.Buffer
			w := open(&encoded)
			_, _ = io.WriteString(w, text)
			_ = w.Close()
			server := proxy(t, h, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", encoding)
				serveJSON(encoded.String())(w, r)
			}))
			for _, accept := range []string{"", "gzip, br, zstd", "identity"} {
				response, body := post(t, server, "Accept-Encoding", accept)
				if !isMasked(body) || !json.Valid([]byte(body)) || response.Header.Get("Content-Encoding") != "" ||
					len(body) > 5000 {
					t.Errorf("accepting %q: got %d bytes %.100q, %v", accept, len(body), body, response.Header)
				}
			}
		})
		t.Run(encoding+" event stream", func(t *testing.T) {
			// The upstream writes an event only after the client has received the previous one.
			next := make(chan bool)
			server := proxy(t, h, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Content-Encoding", encoding)
				enc := open(w)
				for range 3 {
					_, _ = io.WriteString(enc, "event: message\ndata: "+text+"\n\n")
					_ = enc.(interface{ Flush() error }).Flush()
					_ = http.NewResponseController(w).Flush()
					<-next
				}
				_ = enc.Close()
			}))
			response, err := http.Post(server.URL, "application/json", strings.NewReader(request))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			events := 0
			for b := make([]byte, 64<<10); ; {
				n, err := response.Body.Read(b)
				if bytes.HasSuffix(b[:n], []byte("\n\n")) {
					events++
					next <- true
				}
				if err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if events != 3 {
				t.Errorf("%d events, want 3", events)
			}
		})
	}
	t.Run("empty", func(t *testing.T) {
		for _, encoding := range []string{"gzip", "br", "zstd"} {
			server := proxy(t, h, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", encoding)
				w.WriteHeader(http.StatusAccepted)
			}))
			if response, body := post(t, server); response.StatusCode != http.StatusAccepted || body != "" {
				t.Errorf("%s: %d %q", encoding, response.StatusCode, body)
			}
		}
	})
	t.Run("broken", func(t *testing.T) {
		server := proxy(t, h, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			serveJSON("this is no brotli, and must not look like a complete answer")(w, r)
		}))
		response, err := http.Post(server.URL, "application/json", strings.NewReader(request))
		if err == nil {
			_, err = io.ReadAll(response.Body)
			response.Body.Close()
		}
		if err == nil {
			t.Error("the response to a broken body is complete")
		}
	})
	t.Run("unknown", func(t *testing.T) {
		server := proxy(t, h, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "exi")
			serveJSON(text)(w, r)
		}))
		if response, body := post(t, server); body != text || response.Header.Get("Content-Encoding") != "exi" {
			t.Error("the response was changed")
		}
	})
}

func TestIOCopyIsMasked(t *testing.T) {
	text := message(strings.Repeat("x", 100000))
	server := front(t, provision(t, `{}`), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.Copy(w, onlyReader{strings.NewReader(text)})
		return err
	}))
	if _, body := post(t, server); !isMasked(body) || !json.Valid([]byte(body)) {
		t.Errorf("got %.100q", body)
	}
	server = front(t, provision(t, `{}`), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/plain")
		_, err := io.Copy(w, onlyReader{strings.NewReader(text)})
		return err
	}))
	if _, body := post(t, server); body != text {
		t.Errorf("text/plain: got %.100q", body)
	}
}

// onlyReader hides WriteTo, so that io.Copy uses ReadFrom.
type onlyReader struct{ io.Reader }

// Complete events are flushed even if the next handler, unlike reverse_proxy, does not flush them.
func TestCompleteEventsAreFlushed(t *testing.T) {
	next := make(chan bool)
	server := front(t, provision(t, `{}`), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, "data: "+message("x")+"\n\n")
			<-next
		}
		return nil
	}))
	response, err := http.Post(server.URL, "application/json", strings.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if lines.Text() == "" {
			next <- true // writes the next event
		}
	}
}

// A stream of several JSON values is not JSON. From the second value on it is not held back.
func TestOtherStreamsAreNotHeldBack(t *testing.T) {
	next := make(chan bool, 1)
	next <- true // the first value is held back: it may be the whole response
	server := proxy(t, provision(t, `{}`), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for range 4 {
			_, _ = io.WriteString(w, `{"kind":"event"}`+"\n")
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}))
	response, err := http.Post(server.URL, "application/json", strings.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	n := 0
	for lines := bufio.NewScanner(response.Body); lines.Scan(); n++ {
		if n > 0 {
			next <- true
		}
	}
	if n != 4 {
		t.Errorf("%d lines, want 4", n)
	}
}

// Responses that pass unchanged keep their headers (O14).
func TestUnchangedResponsesKeepTheirHeaders(t *testing.T) {
	for name, test := range map[string]struct{ config, text string }{
		"not JSON":       {`{}`, "x" + strings.Repeat("y", 3<<20)},
		"over the limit": {`{"buffer_limit":2000000}`, message(strings.Repeat("x", 3<<20))},
	} {
		text := test.text
		response, body := post(t, proxy(t, provision(t, test.config), serveJSON(text)))
		if body != text || response.ContentLength != int64(len(text)) || response.Header.Get("ETag") == "" {
			t.Errorf("%s: %v", name, response.Header)
		}
	}
}

func TestTrailersStayTrailers(t *testing.T) {
	text := message(strings.Repeat("x", 10000))
	server := proxy(t, provision(t, `{}`), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Trailer", "X-Checksum")
		_, _ = io.WriteString(w, text)
		w.Header().Set("X-Checksum", "abc")
	}))
	response, body := post(t, server)
	if !isMasked(body) || response.Header.Get("X-Checksum") != "" || response.Trailer.Get("X-Checksum") != "abc" {
		t.Errorf("header %v, trailer %v", response.Header, response.Trailer)
	}
}

// A digest of the original, sent as a trailer, is dropped if the body was changed (O14).
func TestDigestsInTrailers(t *testing.T) {
	for _, announced := range []bool{true, false} {
		for text, want := range map[string]string{
			message(strings.Repeat("x", 10000)):   "",
			message(strings.Repeat("x", 4000)):    "sha-256=:abc=:",
			message(strings.Repeat("x", 3000000)): "",
		} {
			server := proxy(t, provision(t, `{}`), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				name := http.TrailerPrefix + "Content-Digest"
				if announced {
					name = "Content-Digest"
					w.Header().Set("Trailer", name)
				}
				_, _ = io.WriteString(w, text)
				w.(http.Flusher).Flush()
				w.Header().Set(name, "sha-256=:abc=:")
			}))
			response, body := post(t, server)
			if got := response.Trailer.Get("Content-Digest"); got != want || isMasked(body) != (want == "") {
				t.Errorf("announced %t, %d of %d bytes: digest %q, want %q", announced, len(body), len(text), got, want)
			}
		}
	}
}

// A response may break off before anything was sent, or in the middle of a string that is being
// cut. The client gets the part that arrived, and sees that the response is incomplete.
func TestUpstreamAbortsInMidBody(t *testing.T) {
	for _, size := range []int{1000, 50000, 500000, 5000000} {
		for _, how := range []string{"length", "chunked", "gzip"} {
			t.Run(fmt.Sprint(size, " ", how), func(t *testing.T) {
				text := message(strings.Repeat("x", size))
				server := proxy(t, provision(t, `{}`), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					var out io.Writer = w
					switch how {
					case "length":
						w.Header().Set("Content-Length", strconv.Itoa(len(text)))
					case "gzip":
						w.Header().Set("Content-Encoding", "x-gzip") // Go's transport does not decode it
						z := gzip.NewWriter(w)
						defer z.Flush()
						out = z
					}
					_, _ = io.WriteString(out, text[:len(text)/2])
					if z, ok := out.(*gzip.Writer); ok {
						_ = z.Flush()
					}
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}))
				response, err := http.Post(server.URL, "application/json", strings.NewReader(request))
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				if err == nil {
					t.Errorf("the response to half a body is complete: %d bytes", len(body))
				}
				if size <= 50000 && string(body) != text[:len(text)/2] {
					t.Errorf("got %d bytes of the %d that arrived", len(body), len(text)/2)
				}
				if size > 500000 && !isMasked(string(body)) {
					t.Errorf("got %d unmasked bytes", len(body))
				}
			})
		}
	}
}

// An enclosing gateway has read the request. Its placeholders win over the body.
func TestPlaceholdersOfAGateway(t *testing.T) {
	h := provision(t, `{"exempt":["fs::read_*"]}`)
	for tool, masked := range map[string]bool{"read_file": false, "write_file": true} {
		repl := caddy.NewReplacer()
		repl.Set("http.mcp.server", "fs")
		repl.Set("http.mcp.method", "tools/call")
		repl.Set("http.mcp.tool", tool)
		recorder := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(request)) // calls the tool read
		r = caddyhttp.PrepareRequest(r, repl, recorder, new(caddyhttp.Server))
		err := h.ServeHTTP(recorder, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			serveJSON(message(strings.Repeat("x", 10000)))(w, r)
			return nil
		}))
		if err != nil || isMasked(recorder.Body.String()) != masked {
			t.Errorf("%s: masked %v, want %v, error %v", tool, !masked, masked, err)
		}
	}
}

// Resources that hosts show to users are never masked, with or without an enclosing gateway.
func TestUIResourcesAreNotMasked(t *testing.T) {
	h := provision(t, `{}`)
	for request, masked := range map[string]bool{
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"ui://a/b.html"}}`:          false,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"\u0075i://a/b.html"}}`:     false,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///ui://a"}}`:         true,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":1,"x":{"uri":"ui://a"}}}`:   true,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"ui://a","uri":"file://"}}`: true,
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"ui://a/b.html"}}`:     true,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ui://a","uri":"ui://a"}}`:     true,
	} {
		var m struct{ Method string }
		if err := json.Unmarshal([]byte(request), &m); err != nil {
			t.Fatal(err)
		}
		for _, fromGateway := range []bool{false, true} {
			repl := caddy.NewReplacer()
			if fromGateway {
				repl.Set("http.mcp.method", m.Method)
			}
			recorder := httptest.NewRecorder()
			r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(request)), repl, recorder,
				new(caddyhttp.Server))
			whole := message(strings.Repeat("x", 10000))
			err := h.ServeHTTP(recorder, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				_, err := io.Copy(io.Discard, r.Body)
				serveJSON(whole)(w, r)
				return err
			}))
			if got := recorder.Body.String(); err != nil || isMasked(got) != masked || !masked && got != whole {
				t.Errorf("%s, placeholders set %t: masked %t, %v", request, fromGateway, isMasked(got), err)
			}
		}
	}
}

func TestPlaceholdersAreSet(t *testing.T) {
	h := provision(t, `{"server":"fs"}`)
	repl := caddy.NewReplacer()
	recorder := httptest.NewRecorder()
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(request)), repl, recorder,
		new(caddyhttp.Server))
	err := h.ServeHTTP(recorder, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		serveJSON(message("x"))(w, r)
		return nil
	}))
	got := repl.ReplaceAll("{http.mcp.server} {http.mcp.method} {http.mcp.tool}", "")
	if want := "fs tools/call read"; err != nil || got != want {
		t.Errorf("got %q, want %q, %v", got, want, err)
	}
}

func TestPartialContentIsNotMasked(t *testing.T) {
	text := message(strings.Repeat("x", 10000))
	server := proxy(t, provision(t, `{}`), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, text)
	}))
	if _, body := post(t, server); body != text {
		t.Error("the response was changed")
	}
}

func TestTheFirstStatusCounts(t *testing.T) {
	recorder := httptest.NewRecorder()
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(request)),
		caddy.NewReplacer(), recorder, new(caddyhttp.Server))
	err := provision(t, `{}`).ServeHTTP(recorder, r,
		caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, err := io.WriteString(w, message(strings.Repeat("x", 10000)))
			w.WriteHeader(http.StatusOK)
			return err
		}))
	if err != nil || recorder.Code != http.StatusBadRequest || !isMasked(recorder.Body.String()) {
		t.Errorf("%d, %v", recorder.Code, err)
	}
}

// Originals can be recovered by their handle (O23).
func TestRecover(t *testing.T) {
	text := strings.Repeat("aé\n😀\"", 5000)
	h := provision(t, `{"recover":{"ttl":"1m"},"server":"s"}`)
	server := proxy(t, h, serveJSON(message(text)))
	_, first := post(t, server)
	_, second := post(t, server)
	if first != second {
		t.Error("the same result was masked differently, which would invalidate the prompt cache")
	}
	id := regexp.MustCompile(` id=(obs_[A-Za-z0-9]{10})\] `).FindStringSubmatch(first)
	if id == nil {
		t.Fatalf("no handle in %.3000q", first)
	}
	literal, _ := json.Marshal(text)
	got, _, ok := h.Original("", id[1])
	if !ok || string(got) != string(literal[1:len(literal)-1]) {
		t.Errorf("recovered %d bytes, want %d", len(got), len(literal)-2)
	}
	if _, _, ok := h.Original("another client", id[1]); ok {
		t.Error("another client recovered the original")
	}

	// A reload provisions the new configuration before the old one is cleaned up.
	again := provision(t, `{"recover":{"ttl":"1m"}}`)
	if again.store != h.store {
		t.Error("the store was lost in a reload")
	}
	other := provision(t, `{"recover":{"ttl":"2m"}}`)
	if other.store == h.store {
		t.Error("handlers with different limits share a store")
	}

	// A store is released with its last handler.
	gone := new(Handler)
	gone.Recover = &Recover{Bounds: storepool.Bounds{TTL: 1}}
	ctx, cancel := newContext(t)
	defer cancel()
	if err := gone.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	if err := gone.Cleanup(); err != nil {
		t.Fatal(err)
	}
	if again, err := storepool.Open(observations, gone.Recover.Limits()); err != nil || again == gone.store {
		t.Error("a store outlived its last handler", err)
	} else if err := again.Release(); err != nil {
		t.Fatal(err)
	}

	// A text that is too large to keep is masked without a handle.
	h = provision(t, `{"recover":{"max_bytes":100000}}`)
	if _, body := post(t, proxy(t, h, serveJSON(message(text)))); !isMasked(body) || strings.Contains(body, " id=obs_") {
		t.Errorf("got %.3000q", body)
	}
}

func TestHandlesAreBoundToTheClient(t *testing.T) {
	for _, placeholder := range []string{"http.auth.user.id", "http.mcp.client"} {
		t.Run(placeholder, func(t *testing.T) { checkHandlesBoundBy(t, placeholder) })
	}
}

func checkHandlesBoundBy(t *testing.T, placeholder string) {
	h := provision(t, `{"recover":{}}`)
	ids := map[string]string{}
	for _, user := range []string{"alice", "bob"} {
		next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			serveJSON(message(strings.Repeat("x", 10000)))(w, r)
			return nil
		})
		recorder := httptest.NewRecorder()
		repl := caddy.NewReplacer()
		repl.Set(placeholder, user)
		r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(request)), repl, recorder,
			new(caddyhttp.Server))
		if err := h.ServeHTTP(recorder, r, next); err != nil {
			t.Fatal(err)
		}
		id := regexp.MustCompile(`obs_[A-Za-z0-9]{10}`).FindString(recorder.Body.String())
		if _, _, ok := h.Original(user, id); !ok {
			t.Errorf("%s cannot recover %q", user, id)
		}
		ids[user] = id
	}
	if ids["alice"] == ids["bob"] {
		t.Error("two clients got the same handle")
	}
	if _, _, ok := h.Original("bob", ids["alice"]); ok {
		t.Error("bob recovered an original of alice")
	}
}

// Exempt results are not masked (O24).
func TestExempt(t *testing.T) {
	text := message(strings.Repeat("x", 10000))
	for _, test := range []struct {
		config string
		masked bool
	}{
		{`{"server":"fs","exempt":["fs::read"]}`, false},
		{`{"server":"fs","exempt":["other::*","fs::re*"]}`, false},
		{`{"exempt":["*::read"]}`, false},
		{`{"server":"fs","exempt":["fs::write"]}`, true},
		{`{"server":"fs","exempt":["other::read"]}`, true},
	} {
		_, body := post(t, proxy(t, provision(t, test.config), serveJSON(text)))
		if isMasked(body) != test.masked {
			t.Errorf("%s: masked %v, want %v", test.config, !test.masked, test.masked)
		}
	}
}

// The target of the request decides, from the body or from an enclosing gateway (O24, O25).
func TestTargetOfTheRequest(t *testing.T) {
	const ask = `{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}`
	for _, test := range []struct {
		name    string
		exempt  string
		request string
		about   mcp.Target
		masked  bool
	}{
		{"a tool", ``, fmt.Sprintf(ask, "tools/call", `{"name":"a"}`), mcp.Target{}, true},
		{"an unknown method", ``, fmt.Sprintf(ask, "x/lists", `{}`), mcp.Target{}, true},
		{"a handshake", ``, fmt.Sprintf(ask, "initialize", `{}`), mcp.Target{}, false},
		{"a handshake without a session", ``, fmt.Sprintf(ask, "server/discover", `{}`), mcp.Target{}, false},
		{"a list", ``, fmt.Sprintf(ask, "tools/list", `{}`), mcp.Target{}, false},
		{"a list of an extension", ``, fmt.Sprintf(ask, "x/things/list", `{}`), mcp.Target{}, false},
		{"a directory", ``, fmt.Sprintf(ask, "resources/directory/read", `{"uri":"file:///a"}`), mcp.Target{}, false},
		{"a tool with the name of a list", ``, fmt.Sprintf(ask, "tools/call", `{"name":"tools/list"}`), mcp.Target{}, true},
		{"a batch", ``, `[` + fmt.Sprintf(ask, "tools/list", `{}`) + `]`, mcp.Target{}, true},
		{"a prompt", `"prompt:fs::a"`, fmt.Sprintf(ask, "prompts/get", `{"name":"a"}`), mcp.Target{}, false},
		{"a tool with the name of a prompt", `"prompt:fs::a"`, fmt.Sprintf(ask, "tools/call", `{"name":"a"}`), mcp.Target{},
			true},
		{"a prompt with the name of a tool", `"fs::a"`, fmt.Sprintf(ask, "prompts/get", `{"name":"a"}`), mcp.Target{}, true},
		{"a resource", `"resource:fs::file:///a"`, fmt.Sprintf(ask, "resources/read", `{"uri":"file:///a/b"}`), mcp.Target{},
			false},
		{"a resource with the same beginning", `"resource:fs::file:///a"`, fmt.Sprintf(ask, "resources/read",
			`{"uri":"file:///ab"}`),
			mcp.Target{}, true},
		{"a resource of another server", `"resource:git::file:///a"`, fmt.Sprintf(ask, "resources/read",
			`{"uri":"file:///a"}`), mcp.Target{}, true},
		{"a whole server", `"fs::*"`, fmt.Sprintf(ask, "resources/read", `{"uri":"file:///a"}`), mcp.Target{}, false},
		{"a whole server and a batch", `"fs::*"`, `[]`, mcp.Target{}, false},
		{"all tools of a server and a batch", `"tool:fs::*"`, `[]`, mcp.Target{}, true},
		{"a tool from a gateway", `"fs::a"`, "", mcp.Target{Kind: mcp.Tool, Name: "a"}, false},
		{"a prompt from a gateway", `"prompt:fs::a"`, "", mcp.Target{Kind: mcp.Prompt, Name: "a"}, false},
		{"a resource from a gateway", `"resource:file:///a"`, "", mcp.Target{Kind: mcp.Resource, Name: "file:///a"},
			false},
		{"another tool than a gateway's", `"fs::b"`, fmt.Sprintf(ask, "tools/call", `{"name":"b"}`),
			mcp.Target{Kind: mcp.Tool, Name: "a"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := provision(t, `{"server":"fs","exempt":[`+test.exempt+`]}`)
			recorder := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.request))
			r = With(caddyhttp.PrepareRequest(r, caddy.NewReplacer(), recorder, new(caddyhttp.Server)),
				&Request{About: test.about})
			whole := message(strings.Repeat("x", 10000))
			err := h.ServeHTTP(recorder, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				_, err := io.Copy(io.Discard, r.Body)
				serveJSON(whole)(w, r)
				return err
			}))
			if got := recorder.Body.String(); err != nil || isMasked(got) != test.masked || !test.masked && got != whole {
				t.Errorf("masked %t, %v", isMasked(got), err)
			}
		})
	}
}

// If the target is unknown, the response shows that it is a list (O25).
func TestListsWithoutATarget(t *testing.T) {
	list := `{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"a","description":"` + strings.Repeat("x", 10000) + `"}]}}`
	h := provision(t, `{}`)
	for _, test := range []struct {
		method, request string
		masked          bool
	}{
		{http.MethodGet, "", false},
		{http.MethodPost, `[{"jsonrpc":"2.0","id":2,"method":"tools/list"}]`, false},
		{http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"a","method":"b"}`, false},
		{http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"tools/call"}`, true},
	} {
		recorder := httptest.NewRecorder()
		r := httptest.NewRequest(test.method, "/", strings.NewReader(test.request))
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), recorder, new(caddyhttp.Server))
		err := h.ServeHTTP(recorder, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			serveJSON(list)(w, r)
			return nil
		}))
		if got := recorder.Body.String(); err != nil || isMasked(got) != test.masked || !test.masked && got != list {
			t.Errorf("%s %s: masked %t, %v", test.method, test.request, isMasked(got), err)
		}
	}
}

func TestCallIsReadFromTheRequest(t *testing.T) {
	for _, test := range []struct{ name, body, method, tool string }{
		{"name first", request, "tools/call", "read"},
		{"the order of the TypeScript SDK", `{"method":"tools/call","params":{"name":"a\u0062",` +
			`"arguments":{"name":"no"}},"jsonrpc":"2.0","id":1}`, "tools/call", "ab"},
		{"long arguments after the name", `{"method":"tools/call","params":{"name":"x","arguments":"` + strings.Repeat("y",
			2*watchLimit) + `"}}`, "tools/call", "x"},
		{"no name", `{"method":"ping"}`, "ping", ""},
		{"not a message", `[1,2]`, "", ""},
		{"a repeated key", `{"method":"a","method":"b"}`, "", ""},
		{"not JSON", `{"method":"a",}`, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &watchedBody{ReadCloser: io.NopCloser(strings.NewReader(test.body))}
			if read, err := io.ReadAll(b); err != nil || string(read) != test.body {
				t.Fatalf("read another body, error %v", err)
			}
			if got := b.envelope(); got.method != test.method || got.name != test.tool {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Responses share buffers, but never content.
func TestResponsesDoNotMix(t *testing.T) {
	server := proxy(t, provision(t, `{"keep_media":true}`), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		text := message(fmt.Sprintf("%06d", n) + strings.Repeat(string(rune('a'+n%26)), n))
		if n%3 == 0 {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+text+"\n\n")
			return
		}
		if n%7 == 0 {
			text = text[:len(text)/2] // not JSON
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}))
	client := server.Client()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 60 {
				n := (g*61+i)*131%30000 + 1
				response, err := client.Post(fmt.Sprint(server.URL, "?n=", n), "application/json", strings.NewReader(request))
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(response.Body)
				response.Body.Close()
				letters := strings.Count(string(body), strings.Repeat(string(rune('a'+n%26)), 30))
				if !strings.Contains(string(body), fmt.Sprintf("%06d", n)) || n > 100 && letters == 0 {
					t.Errorf("n=%d: got %.200q", n, body)
				}
				if n > 4000 && n%7 != 0 && !isMasked(string(body)) {
					t.Errorf("n=%d: not masked", n)
				}
			}
		})
	}
	wg.Wait()
}

// TestMemoryDoesNotGrowWithTheResponse sends 64 MiB through the handler and reverse_proxy.
func TestMemoryDoesNotGrowWithTheResponse(t *testing.T) {
	for name, envelope := range map[string][2]string{
		"jsonrpc first": {`{"jsonrpc":"2.0","id":1,"result":"`, `"}`},
		"result first":  {`{"result":"`, `","jsonrpc":"2.0","id":1}`},
	} {
		t.Run(name, func(t *testing.T) { masked64MiB(t, envelope[0], envelope[1]) })
	}
}

func masked64MiB(t *testing.T, begin, end string) {
	const size = 64 << 20
	piece := strings.Repeat("x", 1<<20)
	var server *httptest.Server
	peak := uint64(0)
	server = proxy(t, provision(t, `{}`), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, begin)
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range size / len(piece) {
			_, _ = io.WriteString(w, piece)
			runtime.ReadMemStats(&now)
			peak = max(peak, now.TotalAlloc-before.TotalAlloc)
		}
		_, _ = io.WriteString(w, end)
	}))
	_, body := post(t, server)
	if want := "original_chars=" + strconv.Itoa(size); !strings.Contains(body, want) {
		t.Fatalf("no %s in %.3000q", want, body)
	}
	if limit := uint64(size / 4); peak > limit { // all allocations, with those of net/http and the race detector
		t.Errorf("allocated %d bytes for a response of %d, more than %d", peak, size, limit)
	}
}

func TestConfigurationDefaults(t *testing.T) {
	for config, want := range map[string][3]int{
		`{}`:                               {4000, 2000, 2000},
		`{"max_chars":1000}`:               {1000, 500, 500},
		`{"max_chars":10000}`:              {10000, 2000, 2000},
		`{"max_chars":100,"head_chars":0}`: {100, 0, 50},
		`{"max_chars":100,"tail_chars":100,"head_chars":0}`: {100, 0, 100},
		`{"max_chars":0}`: {0, 0, 0},
	} {
		p := provision(t, config).policy
		if got := [3]int{p.MaxChars, p.HeadChars, p.TailChars}; got != want {
			t.Errorf("%s: got %v, want %v", config, got, want)
		}
	}
	h := provision(t, `{"recover":{}}`)
	if got, want := h.Recover.Limits(), (store.Limits{Entries: 1000, Bytes: 64 << 20, TTL: 3600e9}); got != want {
		t.Errorf("recover: got %+v, want %+v", got, want)
	}
}

func TestHint(t *testing.T) {
	masked := func(config string) string {
		_, body := post(t, proxy(t, provision(t, config), serveJSON(message(strings.Repeat("x", 5000)))))
		var m struct {
			Result struct{ Content []struct{ Text string } }
		}
		if err := json.Unmarshal([]byte(body), &m); err != nil || len(m.Result.Content) == 0 {
			t.Fatalf("%v in %.3000q", err, body)
		}
		text := regexp.MustCompile(`obs_[A-Za-z0-9]{10}`).ReplaceAllString(m.Result.Content[0].Text, "obs_ID")
		return strings.Trim(text, "x")
	}
	const marker = "\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=5000 head=2000 tail=2000"
	for config, want := range map[string]string{
		`{}`: marker + "] ...\n",
		`{"recover":{}}`: marker + " id=obs_ID] To see more, call recover_observation with this id and a goal. " +
			"...\n",
		`{"recover":{"hint":""}}`:                             marker + " id=obs_ID] ...\n",
		`{"recover":{"hint":"Use \"it\" \\ <é>"}}`:            marker + " id=obs_ID] Use \"it\" \\ <é> ...\n",
		`{"recover":{"max_bytes":32008,"hint":"Not useful"}}`: marker + "] ...\n", // too large to keep
	} {
		if got := masked(config); got != want {
			t.Errorf("%s: got %q, want %q", config, got, want)
		}
	}
	for hint, want := range map[string]string{
		strings.Repeat("é", 201): "recover hint: 201 characters exceed the limit of 200",
		" x":                     "recover hint: must not begin or end with a space",
		"a\nb":                   "recover hint: must be one line of text",
		"a\xffb":                 "recover hint: must be one line of text",
	} {
		ctx, cancel := newContext(t)
		defer cancel()
		if err := (&Handler{Recover: &Recover{Hint: &hint}}).Provision(ctx); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", hint, err, want)
		}
	}
}

func TestHintInACaddyfile(t *testing.T) {
	for text, want := range map[string]*string{
		"recover":                        nil,
		"recover {\nttl 1m\n}":           nil,
		"recover {\nhint off\n}":         new(""),
		"recover {\nhint \"\"\n}":        new(""),
		"recover {\nhint \"Ask me.\"\n}": new("Ask me."),
	} {
		var h Handler
		if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("observation_mask {\n" + text + "\n}")); err != nil {
			t.Fatal(err)
		}
		if got := h.Recover.Hint; (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"hint", "hint a b"} {
		var h Handler
		if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("observation_mask {\nrecover {\n" + text +
			"\n}\n}")); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// replica provisions a handler that shares an engine with other replicas.
func replica(t *testing.T, engine *replicastest.Engine, config string) *Handler {
	t.Helper()
	h := new(Handler)
	if err := caddy.StrictUnmarshalJSON([]byte(config), h); err != nil {
		t.Fatal(err)
	}
	if err := h.Provision(storetest.Replica(t, engine, mcpstore.App{})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Replicas mask a text alike, and recover originals of each other. Unmasked results use no store.
func TestReplicas(t *testing.T) {
	engine := replicastest.New()
	text := strings.Repeat("text ", 5000)
	var bodies []string
	for range 2 {
		h := replica(t, engine, `{"recover":{},"server":"s"}`)
		_, body := post(t, proxy(t, h, serveJSON(message(text))))
		bodies = append(bodies, body)
	}
	if bodies[0] != bodies[1] {
		t.Errorf("masked differently: %.3000q, %.3000q", bodies[0], bodies[1])
	}
	id := regexp.MustCompile(`obs_[A-Za-z0-9]{10}`).FindString(bodies[0])
	third := replica(t, engine, `{"recover":{"ttl":"2m"},"server":"s"}`)
	other := replica(t, engine, `{"recover":{},"server":"other"}`)
	for h, want := range map[*Handler]bool{third: true, other: false} {
		if err := storepool.Fetch(t.Context(), id, h.Place("")); err != nil {
			t.Fatal(err)
		}
		if got, _, ok := h.Original("", id); ok != want || ok && string(got) != text {
			t.Errorf("%s: found %t, %d bytes", h.Server, ok, len(got))
		}
	}
	before := engine.Operations.Load()
	server := proxy(t, third, serveJSON(message("short")))
	for range 10 {
		if _, body := post(t, server); isMasked(body) {
			t.Fatal("a short text was masked")
		}
	}
	if _, _, ok := third.Original("", id); !ok {
		t.Error("the original is gone")
	}
	if n := engine.Operations.Load() - before; n != 0 {
		t.Errorf("%d operations, want 0", n)
	}
}

// BenchmarkServeHTTP serves a small response with and without the handler, and without a network.
func BenchmarkServeHTTP(b *testing.B) {
	h := new(Handler)
	if err := json.Unmarshal([]byte(`{}`), h); err != nil {
		b.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		b.Fatal(err)
	}
	if err := h.Provision(ctx); err != nil {
		b.Fatal(err)
	}
	body := []byte(message(strings.Repeat("x", 1000)))
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusOK)
		_, err := w.Write(body)
		return err
	})
	for _, masked := range []bool{false, true} {
		b.Run("masked="+strconv.FormatBool(masked), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := &discard{header: http.Header{}}
				r, _ := http.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(request))
				r.Header.Set("Content-Type", "application/json")
				r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
				if masked {
					err = h.ServeHTTP(w, r, next)
				} else {
					err = next.ServeHTTP(w, r)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
