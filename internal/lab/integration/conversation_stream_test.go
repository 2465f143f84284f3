package integration

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// withoutLength removes the length of a request's body, so that it is sent in chunks.
func withoutLength(req *http.Request) *http.Request {
	req.ContentLength = -1
	return req
}

// Bodies that cannot be masked arrive as without the mask, headers included (T24).
func TestUnmaskable(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, block("tool_result_mask /chat/completions", "window_turns 1", "buffer_limit 10KiB"),
		proxy(upstream(t, chat)))
	large := twoTurns(strings.Repeat("A", 10<<10))
	small := oneTurnLater(callsMessage("call_1 read"), resultMessage("call_1", "AAA"))
	deep := `{"x":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `,` + small[1:]
	gzipped := compress(t, "gzip", b2Sent)
	amplifying := conversation(`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"`+
		strings.Repeat(`\ud83d\ude00`, 64)+`"}}]}`,
		strings.TrimSuffix(strings.Repeat(resultMessage("a", "")+",", 180), ","), callsMessage("b read"))
	for _, tt := range []struct {
		name, body, encoding string
		reason               string
	}{
		{"T24 not JSON", "model=m&messages=", "", "invalid_json"},
		{"T24 incomplete JSON", b2Sent[:len(b2Sent)-1], "", "invalid_json"},
		{"T24 JSON cut in a string", b2Sent[:500], "", "invalid_json"},
		{"T24 something after JSON", b2Sent + "x", "", "invalid_json"},
		{"T24 two JSON values", b2Sent + b2Sent, "", "invalid_json"},
		{"T24 a byte order mark", "\ufeff" + b2Sent, "", "invalid_json"},
		{"T24 an extra comma", strings.Replace(b2Sent, `"messages":[`, `"messages":[,`, 1), "", "invalid_json"},
		{"T24 nested too deeply", deep, "", "invalid_json"},
		{"T24 white space", " \n", "", "invalid_json"},
		{"T24 no messages", `{"model":"m","prompt":"x"}`, "", "shape"},
		{"T24 messages that are not a list", `{"messages":{"role":"tool"}}`, "", "shape"},
		{"T24 messages that are null", `{"messages":null}`, "", "shape"},
		{"T24 a message that is not an object", strings.Replace(b2Sent, `"messages":[`, `"messages":["x",`, 1), "", "shape"},
		{"T24 a message that is null", strings.TrimSuffix(b2Sent, "]}") + ",null]}", "", "shape"},
		{"T24 a list", "[" + b2Sent + "]", "", "shape"},
		{"T24 a string", `"x"`, "", "shape"},
		{"T24 messages and input", strings.Replace(b2Sent, `{"model"`, `{"input":[],"model"`, 1), "", "shape"},
		{"T24 messages twice", strings.Replace(b2Sent, `{"model"`, `{"messages":[],"model"`, 1), "", "repeated_key"},
		{"T24 a role twice", strings.Replace(b2Sent, `"role":"tool"`, `"role":"tool","role":"user"`, 1), "", "repeated_key"},
		{"T24 content twice, once in escapes", strings.Replace(b2Sent, `"role":"tool"`, `"role":"tool","\u0063ontent":"x"`,
			1), "", "repeated_key"},
		{"T24 invalid gzip", b2Sent, "gzip", "encoding"},
		{"T24 half a gzip", gzipped[:len(gzipped)-5], "gzip", "encoding"},
		{"T24 invalid zstd", b2Sent, "zstd", "encoding"},
		{"T24 invalid br", b2Sent, "br", "encoding"},
		{"T24 an unknown encoding", b2Sent, "x-secret", "encoding"},
		{"T24 two encodings", compress(t, "gzip", gzipped), "gzip, gzip", "encoding"},
		{"T24 gzip of invalid JSON", compress(t, "gzip", "x"), "gzip", "invalid_json"},
		{"T24 results shorter than their placeholders", amplifying, "", "grows"},
		{"T24 results shorter than their placeholders, compressed", compress(t, "gzip", amplifying), "gzip", "grows"},
		{"T24 too large", large, "", "too_large"},
		{"T24 too large and not JSON", large[1:], "", "too_large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			headers := []string{"Content-Encoding: " + tt.encoding, "Digest: sha-256=x", "Content-MD5: x",
				"Content-Digest: sha-256=:x:",
				"Repr-Digest: sha-256=:x:", "Authorization: Bearer x", "X-Other: kept", "Accept-Encoding: br"}
			for _, length := range []string{"announced", "unannounced"} {
				send := func(path string) mcptest.Request {
					req := request(t, t.Context(), "POST", url+path, tt.body, headers...)
					if length == "unannounced" {
						req = withoutLength(req)
					}
					return receivedByModel(t, chat, req)
				}
				want := send("/past/the/mask")
				grown := growth(t)
				got := send("/chat/completions")
				same(t, got.Body, tt.body)
				same(t, want.Body, tt.body)
				if !reflect.DeepEqual(got.Headers, want.Headers) {
					t.Errorf("%s: headers\n got %v\nwant %v", length, got.Headers, want.Headers)
				}
				passed := grown()
				maps.DeleteFunc(passed, func(sample string, _ float64) bool {
					return strings.HasPrefix(sample, "usage_tokens") || strings.HasPrefix(sample, "prompt_cost")
				})
				if want := map[string]float64{`conversations_passed_total{reason="` + tt.reason + `"}`: 1}; !maps.Equal(passed,
					want) {
					t.Errorf("%s: counted %v, want %v", length, passed, want)
				}
			}
		})
	}
}

func TestBufferLimit(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	address := upstream(t, chat)
	limited := func(t *testing.T, limit int) (url string) {
		t.Helper()
		return serve(t, conversationMask("window_turns 1", fmt.Sprintf("buffer_limit %dB", limit)), proxy(address))
	}
	for _, tt := range []struct {
		name        string
		limit, size int // of the old result
		masked      bool
	}{
		{"T24 up to the limit", len(b2Sent), 1000, true},
		{"T24 one byte over the limit", len(b2Sent) - 1, 1000, false},
		{"T24 up to a large limit", len(b2Sent) + 5<<20, 1000 + 5<<20, true},
		{"T24 one byte over a large limit", len(b2Sent) + 5<<20 - 1, 1000 + 5<<20, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := limited(t, tt.limit)
			sent := twoTurns(strings.Repeat("A", tt.size))
			want := sent
			if tt.masked {
				want = twoTurns(placeholder("call_1", "fast_read_file", tt.size))
			}
			same(t, receivedByModel(t, chat, request(t, t.Context(), "POST", url, sent)).Body, want)
			same(t, receivedByModel(t, chat, withoutLength(request(t, t.Context(), "POST", url, sent))).Body, want)
		})
	}
	t.Run("T24 32 MiB by default", func(t *testing.T) {
		url := serve(t, windowOfOne, proxy(address))
		within, beyond := 32<<20-len(twoTurns("")), 32<<20-len(twoTurns(""))+1
		same(t, receivedByModel(t, chat, request(t, t.Context(), "POST", url, twoTurns(strings.Repeat("A", within)))).Body,
			twoTurns(placeholder("call_1", "fast_read_file", within)))
		same(t, receivedByModel(t, chat, request(t, t.Context(), "POST", url, twoTurns(strings.Repeat("A", beyond)))).Body,
			twoTurns(strings.Repeat("A", beyond)))
	})
	t.Run("T24 the limit applies to the decoded body, too", func(t *testing.T) {
		url := limited(t, len(b2Sent)-1)
		grown := growth(t)
		sent := compress(t, "gzip", b2Sent)
		same(t, receivedByModel(t, chat, request(t, t.Context(), "POST", url, sent, "Content-Encoding: gzip")).Body, sent)
		passed := 0.0
		for sample, n := range grown() {
			if strings.HasPrefix(sample, "conversations_passed_total") {
				passed += n
			}
		}
		if passed != 1 {
			t.Errorf("%v conversations passed", passed)
		}
	})
	t.Run("T24 the total of all requests is limited, too", func(t *testing.T) {
		arrived, answer := make(chan string), make(chan struct{})
		url := serve(t, conversationMask("window_turns 1", "max_buffered 6KiB"),
			proxy(upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				arrived <- string(body)
				<-answer
			}))))
		answered := make(chan struct{})
		send := func() {
			req := withoutLength(request(t, t.Context(), "POST", url, b2Sent))
			go func() {
				if res, err := client.Do(req); err == nil {
					res.Body.Close()
				}
				answered <- struct{}{}
			}()
		}
		grown := growth(t)
		send()
		same(t, <-arrived, b2Masked)
		send()
		same(t, <-arrived, b2Sent)
		if n := grown()[`conversations_passed_total{reason="memory"}`]; n != 1 {
			t.Errorf("%v conversations passed", n)
		}
		close(answer)
		<-answered
		<-answered
		send() // the buffers are released
		same(t, <-arrived, b2Masked)
		<-answered
	})
	t.Run("T24 a body over the limit is forwarded before it ends", func(t *testing.T) {
		begun, whole := make(chan struct{}), make(chan string, 1)
		url := serve(t, conversationMask("buffer_limit 1KiB"),
			proxy(upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				first := make([]byte, 2<<10)
				if _, err := io.ReadFull(r.Body, first); err == nil {
					close(begun)
				}
				rest, _ := io.ReadAll(r.Body)
				whole <- string(first) + string(rest)
			}))))
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, b2Sent+b2Sent+b2Sent)
			select {
			case <-begun:
				_, _ = io.WriteString(w, b2Sent)
				w.Close()
			case <-t.Context().Done():
				w.CloseWithError(errors.New("the body is not forwarded"))
			}
		}()
		req := withoutLength(request(t, t.Context(), "POST", url, ""))
		req.Body, req.GetBody = r, nil
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		same(t, <-whole, b2Sent+b2Sent+b2Sent+b2Sent)
	})
}

// If a client disconnects during a request, nothing hangs, and the model gets nothing that looks
// complete (T24).
func TestClientBreaksOff(t *testing.T) {
	isolate(t)
	half := b2Sent[:len(b2Sent)/2]
	lengths := map[string]string{
		"announced":   fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 1<<20, half),
		"unannounced": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(half), half),
	}
	drop := map[string]string{"announced": " ", "unannounced": "1\r\n \r\n"}
	arrived := make(chan string, 100) // complete bodies
	model := func(t *testing.T) string {
		return upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err == nil {
				arrived <- string(body)
			}
		}))
	}
	for _, limit := range []string{"1MiB", "100B"} {
		for length, rest := range lengths {
			for _, leave := range []string{"stops sending", "hangs up", "drips"} {
				if leave == "drips" && limit == "100B" {
					continue // it is forwarded without buffering
				}
				t.Run(fmt.Sprintf("T24 the client %s, length %s, limit %s", leave, length, limit), func(t *testing.T) {
					url := serve(t, conversationMask("window_turns 1", "buffer_limit "+limit, "body_timeout 1ms"), proxy(model(t)))
					host := strings.TrimPrefix(url, "http://")
					conn, err := net.Dial("tcp", host)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					_ = conn.SetDeadline(time.Now().Add(patience))
					_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: "+host+"\r\nContent-Type: application/json\r\n"+rest)
					if leave == "hangs up" {
						conn.Close()
					} else {
						if leave == "stops sending" {
							_ = conn.(*net.TCPConn).CloseWrite()
						}
						for err := error(nil); leave == "drips" && err == nil; { // until Caddy closes the connection
							_, err = io.WriteString(conn, drop[length])
						}
						if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
							t.Error("the connection stays open")
						}
					}
					post(t, url, b2Sent) // others are served
				})
			}
		}
	}
	t.Run("T24 a stream of HTTP/2 is reset", func(t *testing.T) {
		address := freeAddress(t)
		load(t, h2cOptions+site(address, windowOfOne, proxy(model(t))))
		client := h2cClient(t)
		req := withoutLength(request(t, t.Context(), "POST", "http://"+address, ""))
		req.Body, req.GetBody = io.NopCloser(io.MultiReader(strings.NewReader(half), brokenReader{})), nil
		if res, err := client.Do(req); err == nil {
			t.Errorf("got response %s", res.Status)
			res.Body.Close()
		}
		send(t, client, "POST", "http://"+address, b2Sent)
	})
	// Closing an upstream waits for its handlers, so all of them have returned.
	close(arrived)
	complete := 0
	for body := range arrived {
		if body != b2Masked && body != b2Sent {
			t.Errorf("%d bytes arrived as a complete request: %.200s", len(body), body)
		}
		complete++
	}
	if complete != 11 {
		t.Errorf("got %d later requests, want 11", complete)
	}
}

// brokenReader fails like a client that disconnects.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken off") }

// If a handler in front refuses large bodies, the response is the same as without the mask (T24).
func TestRefusedByAnotherHandler(t *testing.T) {
	isolate(t)
	refuse := block("request_body", "max_size 1KB")
	var arrived atomic.Int32
	model := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil {
			arrived.Add(1)
		}
	}))
	with, without := freeAddress(t), freeAddress(t)
	load(t, site(with, refuse, windowOfOne, proxy(model))+site(without, refuse, proxy(model)))
	for _, length := range []int64{int64(len(b2Sent)), -1} {
		var status [2]int
		for i, address := range []string{with, without} {
			req := request(t, t.Context(), "POST", "http://"+address, b2Sent)
			req.ContentLength = length
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			status[i] = res.StatusCode
		}
		if status[0] != status[1] || arrived.Load() > 0 {
			t.Errorf("length %d: status %d with the mask, %d without; %d requests arrived", length, status[0], status[1],
				arrived.Load())
		}
	}
}

// The headers that describe a body are right (T25).
func TestDescription(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, windowOfOne, proxy(upstream(t, chat)))
	unmasked := oneTurnLater(chatMessage("user", "hello"))
	description := []string{"Digest: sha-256=x", "Content-MD5: x", "Content-Digest: sha-256=:x:",
		"Repr-Digest: sha-256=:x:"}
	for _, encoding := range []string{"", "identity", "gzip", "x-gzip", "GZIP", "br", "zstd"} {
		for _, chunked := range []bool{false, true} {
			for _, masked := range []bool{false, true} {
				t.Run(fmt.Sprintf("T25 encoding %q, chunked %t, masked %t", encoding, chunked, masked), func(t *testing.T) {
					plain := unmasked
					if masked {
						plain = b2Sent
					}
					sent := compress(t, strings.TrimPrefix(strings.ToLower(encoding), "x-"), plain)
					req := request(t, t.Context(), "POST", url, sent, append(description, "Content-Encoding: "+encoding,
						"X-Other: kept")...)
					if chunked {
						req = withoutLength(req)
					}
					got := receivedByModel(t, chat, req)
					length, transfer := got.Headers.Get("Content-Length"), got.Headers.Get("Transfer-Encoding")
					for _, header := range append(description, "Content-Encoding: "+encoding) {
						name, want, _ := strings.Cut(header, ": ")
						if masked && want != "identity" { // still true
							want = ""
						}
						if value := got.Headers.Get(name); value != want && want != "identity" {
							t.Errorf("%s %q, want %q", name, value, want)
						}
					}
					if got.Headers.Get("X-Other") != "kept" || got.Headers.Get("Content-Type") != "application/json" {
						t.Errorf("other headers are lost: %v", got.Headers)
					}
					if masked {
						same(t, got.Body, b2Masked)
					} else {
						same(t, got.Body, sent)
					}
					if masked || !chunked {
						if length != strconv.Itoa(len(got.Body)) || transfer != "" {
							t.Errorf("Content-Length %q, Transfer-Encoding %q of %d bytes", length, transfer, len(got.Body))
						}
					}
				})
			}
		}
	}
	t.Run("T25 a trailer", func(t *testing.T) {
		req := withoutLength(request(t, t.Context(), "POST", url, b2Sent))
		req.Trailer = http.Header{"Content-Digest": {"sha-256=:x:"}}
		got := receivedByModel(t, chat, req)
		same(t, got.Body, b2Masked)
		if length := got.Headers.Get("Content-Length"); length != strconv.Itoa(len(b2Masked)) {
			t.Errorf("Content-Length %q of %d bytes", length, len(b2Masked))
		}
	})
	t.Run("T25 a client that expects 100 Continue", func(t *testing.T) {
		client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: patience}, Timeout: patience}
		send(t, client, "POST", url, b2Sent, "Expect: 100-continue")
		same(t, chat.Last().Body, b2Masked)
	})
}

// Responses are the same as without a mask (T26).
func TestResponsesAreUnchanged(t *testing.T) {
	isolate(t)
	for _, f := range append(chatFormats, chatFormat{"something else", "/v1/other", b2Sent, b2Masked, false}) {
		for _, compressed := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("T26 %s, compressed %t, stream %t", f.name, compressed, stream), func(t *testing.T) {
					chat := &mcptest.Chat{Compress: compressed}
					model, with, without := upstream(t, chat), freeAddress(t), freeAddress(t)
					load(t, site(with, windowOfOne, proxy(model))+site(without, proxy(model)))
					body, masked := f.sent, f.masked
					if stream {
						body, masked = streamRequest(body), streamRequest(masked)
					}
					for _, accept := range []string{"", "gzip"} {
						want := post(t, "http://"+without+f.path, body, "Accept-Encoding: "+accept)
						got := post(t, "http://"+with+f.path, body, "Accept-Encoding: "+accept)
						same(t, chat.Last().Body, masked)
						same(t, got.body, want.body)
						for _, header := range []http.Header{want.Header, got.Header} {
							header.Del("Date")
						}
						if accept == "gzip" && want.Header.Get("Content-Encoding") == "gzip" != compressed {
							t.Errorf("the upstream responds with %v", want.Header)
						}
						if got.StatusCode != want.StatusCode || !reflect.DeepEqual(got.Header, want.Header) {
							t.Errorf("got %s %v\nwant %s %v", got.Status, got.Header, want.Status, want.Header)
						}
					}
				})
			}
		}
	}
	t.Run("T26 a refusal", func(t *testing.T) {
		address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"error":{"message":"slow down"}}`)
		}))
		got := post(t, serve(t, windowOfOne, proxy(address)), b2Sent)
		if got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "7" ||
			got.body != `{"error":{"message":"slow down"}}` {
			t.Errorf("got %s %v %s", got.Status, got.Header, got.body)
		}
	})
}

// Early hints, responses and trailers of an upstream arrive (T26).
func TestBeforeAndAfterTheAnswer(t *testing.T) {
	isolate(t)
	address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Trailer", "X-After")
		_, _ = io.WriteString(w, `{"ok":true}`)
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-After", "all")
	}))
	hints := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			if code == http.StatusEarlyHints && header.Get("Link") == "</x>; rel=preload" {
				hints++
			}
			return nil
		},
	})
	res, err := client.Do(request(t, ctx, "POST", serve(t, windowOfOne, proxy(address)), b2Sent))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || string(body) != `{"ok":true}` || hints != 1 || res.Trailer.Get("X-After") != "all" {
		t.Errorf("got %d hints, %s, trailer %v, %v", hints, body, res.Trailer, err)
	}
}

// If an upstream breaks off, the client does not get a response that looks complete, and Caddy
// survives.
func TestModelDies(t *testing.T) {
	isolate(t)
	const event = "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n"
	for name, answer := range map[string]string{
		"T26 JSON":           "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"ok\":",
		"T26 JSON in chunks": "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{\"ok\":\r\n",
		"T26 a stream": "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" +
			fmt.Sprintf("%x\r\n%s\r\n", len(event), event),
		"T26 half a gzip": "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 1000\r\n\r\n" +
			compress(t, "gzip", event)[:20],
		"T26 invalid gzip": "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: " +
			"1000\r\n\r\n{\"ok\":",
	} {
		t.Run(name, func(t *testing.T) {
			dying := rawUpstream(t, func(conn net.Conn, _ *bufio.Reader) {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+answer)
			})
			chat := new(mcptest.Chat)
			url := serve(t, windowOfOne, "reverse_proxy /dying "+dying, proxy(upstream(t, chat)))
			res, err := client.Do(request(t, t.Context(), "POST", url+"/dying", b2Sent, "Accept-Encoding: gzip"))
			if err == nil {
				defer res.Body.Close()
				var body []byte
				if body, err = io.ReadAll(res.Body); err == nil {
					t.Errorf("looks complete: %s %q", res.Status, body)
				}
			}
			expectSent(t, chat, url, b2Sent, b2Masked)
		})
	}
}

// A gatedStream is a stream that its upstream pauses after the first event.
type gatedStream struct {
	raw   bytes.Buffer // all bytes received
	body  *bufio.Reader
	first string // first event
}

// openGated requests a stream and returns once its first event has arrived.
func openGated(t *testing.T, client *http.Client, url, body, accept string) *gatedStream {
	t.Helper()
	res := open(t, client, "POST", url, body, "Accept-Encoding: "+accept)
	s := new(gatedStream)
	res.Body = io.NopCloser(io.TeeReader(res.Body, &s.raw))
	s.body = decoded(t, res, accept)
	s.first = nextEvent(t, s.body)
	return s
}

// rest reads up to the end of the stream.
func (s *gatedStream) rest(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, s.body); err != nil {
		t.Fatalf("after %.200q: %v", s.first, err)
	}
}

// The client gets the first event before the upstream sends the second (T26).
func TestFirstEventArrives(t *testing.T) {
	isolate(t)
	h2 := h2cClient(t)
	for _, f := range chatFormats {
		for _, accept := range []string{"", "gzip"} {
			for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
				t.Run(strings.TrimSpace(fmt.Sprintf("T26 %s over %s %s", f.name, protocol, accept)), func(t *testing.T) {
					chat := &mcptest.Chat{Gate: make(chan struct{}), Compress: accept != ""}
					model := upstream(t, chat)
					address := freeAddress(t)
					load(t, h2cOptions+site(address, windowOfOne, proxy(model)))
					client := client
					if protocol == "HTTP/2" {
						client = h2
					}
					got := openGated(t, client, "http://"+address+f.path, streamRequest(f.sent), accept)
					same(t, chat.Last().Body, streamRequest(f.masked))
					close(chat.Gate)
					got.rest(t)
					want := post(t, "http://"+model+f.path, streamRequest(f.sent), "Accept-Encoding: "+accept)
					same(t, got.raw.String(), want.body)
				})
			}
		}
	}
}

// A stream survives a reload.
func TestReloadDuringAnAnswer(t *testing.T) {
	isolate(t)
	chat := &mcptest.Chat{Gate: make(chan struct{})}
	model, address := upstream(t, chat), freeAddress(t)
	url := "http://" + address + "/v1/chat/completions"
	config := func(lines ...string) string { return site(address, conversationMask(lines...), proxy(model)) }
	load(t, config("window_turns 1", "route before"))
	client := sequentialClient(t)
	grown := growth(t)
	got := openGated(t, client, url, streamRequest(b2Sent), "")

	load(t, config("window_turns 2", "route after"))
	expectSent(t, chat, url, b2Sent, b2Sent)
	close(chat.Gate)
	got.rest(t)
	same(t, got.raw.String(), post(t, "http://"+model+"/v1/chat/completions", streamRequest(b2Sent)).body)

	// T38: usage counts for the route of the request.
	send(t, client, "GET", url, "")
	for _, route := range []string{"before", "after"} {
		if n := grown()[`usage_tokens_total{route="`+route+`",type="output"}`]; n != 20 {
			t.Errorf("counted %v tokens for the route %s", n, route)
		}
	}
}

func TestConversationOverHTTP2(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	address := freeAddress(t)
	load(t, h2cOptions+site(address, windowOfOne, proxy(upstream(t, chat))))
	client := h2cClient(t)
	for _, f := range chatFormats {
		for _, encoding := range []string{"", "gzip"} {
			t.Run(strings.TrimSpace("T25 "+f.name+" "+encoding), func(t *testing.T) {
				got := send(t, client, "POST", "http://"+address+f.path, compress(t, encoding, f.sent), "Content-Encoding: "+
					encoding)
				if got.ProtoMajor != 2 || got.StatusCode != http.StatusOK {
					t.Errorf("%s %s", got.Proto, got.Status)
				}
				last := chat.Last()
				same(t, last.Body, f.masked)
				if length := last.Headers.Get("Content-Length"); length != strconv.Itoa(len(f.masked)) ||
					last.Headers.Get("Transfer-Encoding") != "" {
					t.Errorf("headers %v of %d bytes", last.Headers, len(f.masked))
				}
			})
		}
	}
	t.Run("T25 of unknown length", func(t *testing.T) {
		res, err := client.Do(withoutLength(request(t, t.Context(), "POST", "http://"+address, b2Sent)))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		same(t, chat.Last().Body, b2Masked)
	})
	t.Run("T25 to an HTTP/2 upstream", func(t *testing.T) {
		server := httptest.NewUnstartedServer(chat)
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		t.Cleanup(server.Close)
		url := serve(t, windowOfOne, proxy("h2c://"+server.Listener.Addr().String()))
		expectSent(t, chat, url, b2Sent, b2Masked)
		expectSent(t, chat, url, b2Masked, b2Masked)
	})
}

// If the first of two upstreams fails, the second gets the whole masked request.
func TestRetries(t *testing.T) {
	isolate(t)
	resetting := rawUpstream(t, func(conn net.Conn, _ *bufio.Reader) { _ = conn.(*net.TCPConn).SetLinger(0) })
	long := twoTurns(strings.Repeat("A", 1<<20))
	for _, tt := range []struct {
		name  string
		first string // address of the upstream
		lines []string
	}{
		{"T25 a refused connection", freeAddress(t), nil},
		{"T25 a refused connection, buffered", freeAddress(t), []string{"request_buffers 1MiB"}},
		{"T25 a reset connection, buffered", resetting, []string{"request_buffers 1MiB", "lb_retry_match method POST"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chat := new(mcptest.Chat)
			lines := append([]string{"lb_policy first", "lb_try_duration 5s", "lb_try_interval 10ms", "max_fails 1",
				"fail_duration 10s"}, tt.lines...)
			url := serve(t, windowOfOne, block(proxy(tt.first+" "+upstream(t, chat)), lines...))
			expectSent(t, chat, url, long, twoTurns(placeholder("call_1", "fast_read_file", 1<<20)))
			url = serve(t, windowOfOne, block(proxy(tt.first+" "+upstream(t, chat)), lines...))
			expectSent(t, chat, url, compress(t, "gzip", b2Sent), b2Masked, "Content-Encoding: gzip")
			url = serve(t, windowOfOne, block(proxy(tt.first+" "+upstream(t, chat)), lines...))
			expectSent(t, chat, url, b2Masked, b2Masked) // already masked
		})
	}
}

// One site can serve a model and an MCP server.
func TestBothMasks(t *testing.T) {
	isolate(t)
	chat, mux := new(mcptest.Chat), http.NewServeMux()
	mux.Handle("/mcp", new(mcptest.Stub))
	mux.Handle("/", chat)
	model := upstream(t, mux)
	url := serve(t, windowOfOne, "observation_mask", proxy(model))
	for _, f := range chatFormats {
		for _, body := range []string{f.sent, streamRequest(f.sent)} {
			want := post(t, "http://"+model+f.path, body).body
			same(t, post(t, url+f.path, body).body, want)
			same(t, chat.Last().Body, strings.Replace(body, thousand, placeholder("call_1", "fast_read_file", 1000), 1))
		}
	}
	same(t, post(t, url+"/mcp", rpc("big", `{"n":5000}`)).body, result(`"`+cut("A", 5000, 2000, 2000)+`"`))
	nested := `{"messages":` + strings.TrimPrefix(strings.TrimSuffix(b2Sent, "}"), `{"model":"m","messages":`) + `}`
	same(t, post(t, url+"/mcp", rpc("echo", nested)).body, result(nested))
}

// savedChars is how many characters masking saves in each format.
var savedChars = float64(1000 - utf8.RuneCountInString(placeholder("call_1", "fast_read_file", 1000)))

// routeCosts removes the costs of a route from grown and returns them in whole tokens.
func routeCosts(grown map[string]float64, route string) (sent, unmasked float64) {
	take := func(kind string) float64 {
		sample := fmt.Sprintf(`prompt_cost_total{of=%q,route=%q}`, kind, route)
		defer delete(grown, sample)
		return math.Round(grown[sample])
	}
	return take("sent"), take("unmasked")
}

// One request of each kind is counted correctly (T38).
func TestConversationMetrics(t *testing.T) {
	isolate(t)
	usage := mcptest.Usage{Input: 4321, Cached: 2100, CacheWrite: 210, Output: 21}
	billed := func(route string, f chatFormat) map[string]float64 {
		kinds := map[string]int{"input": usage.Input, "cached": usage.Cached, "output": usage.Output}
		if f.writesCache {
			kinds["cache_write"] = usage.CacheWrite
		}
		samples := map[string]float64{}
		for kind, n := range kinds {
			samples[fmt.Sprintf(`usage_tokens_total{route=%q,type=%q}`, route, kind)] = float64(n)
		}
		return samples
	}
	cost := func(f chatFormat) float64 {
		if f.writesCache {
			return 2100*.1 + 210*1.25 + 2011
		}
		return 2100*.1 + 2221
	}
	for _, route := range []string{"", "kimi"} {
		for _, f := range chatFormats {
			for _, compressed := range []bool{false, true} {
				for _, stream := range []bool{false, true} {
					t.Run(fmt.Sprintf("T38 route %q, %s, compressed %t, stream %t", route, f.name, compressed, stream),
						func(t *testing.T) {
							lines, accept := []string{"window_turns 1"}, ""
							if route != "" {
								lines = append(lines, "route "+route)
							}
							if compressed {
								accept = "gzip"
							}
							address := freeAddress(t)
							url := "http://" + address + f.path
							config := site(address, conversationMask(lines...),
								proxy(upstream(t, &mcptest.Chat{Usage: usage, Compress: compressed})))
							load(t, config)
							sent, masked := f.sent, f.masked
							if stream {
								sent, masked = streamRequest(sent), streamRequest(masked)
							}
							client := sequentialClient(t)
							count := func(body string) {
								t.Helper()
								send(t, client, "POST", url, body, "Accept-Encoding: "+accept)
								send(t, client, "GET", url, "") // so that the request is counted
							}

							grown := growth(t)
							count(sent)
							want := billed(route, f)
							want["tool_results_masked_total"], want["tool_result_chars_saved_total"], want["prompt_prefix_breaks_total"] = 1,
								savedChars, 1
							got := grown()
							if sent, unmasked := routeCosts(got, route); sent != math.Round(cost(f)) || unmasked == sent || unmasked == 0 {
								t.Errorf("got cost %v, unmasked %v", sent, unmasked)
							}
							if !maps.Equal(got, want) {
								t.Errorf("counted %v\nwant %v", got, want)
							}
							load(t, config+site(freeAddress(t), "respond x")) // counts survive a reload
							got = grown()
							routeCosts(got, route)
							if !maps.Equal(got, want) {
								t.Errorf("after a reload %v\nwant %v", got, want)
							}
							client = sequentialClient(t)
							grown = growth(t)
							count(masked)
							got = grown()
							if sent, unmasked := routeCosts(got, route); sent != math.Round(cost(f)) || unmasked != sent {
								t.Errorf("nothing masked: got cost %v, unmasked %v", sent, unmasked)
							}
							if want := billed(route, f); !maps.Equal(got, want) {
								t.Errorf("nothing masked: counted %v\nwant %v", got, want)
							}
						})
				}
			}
		}
	}
	t.Run("T2 off, nothing is counted", func(t *testing.T) {
		url := serve(t, conversationMask("enabled off"), proxy(upstream(t, new(mcptest.Chat))))
		client := sequentialClient(t)
		grown := growth(t)
		send(t, client, "POST", url+"/v1/chat/completions", b2Sent)
		send(t, client, "GET", url, "")
		if got := grown(); len(got) > 0 {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("T38 usage of a window that masks nothing", func(t *testing.T) {
		url := serve(t, conversationMask("window_turns 0", "route plain"), proxy(upstream(t, &mcptest.Chat{Usage: usage})))
		client := sequentialClient(t)
		grown := growth(t)
		send(t, client, "POST", url+"/v1/chat/completions", b2Sent)
		send(t, client, "GET", url, "")
		got := grown()
		if sent, unmasked := routeCosts(got, "plain"); sent != cost(chatFormats[0]) || unmasked != sent {
			t.Errorf("got cost %v, unmasked %v", sent, unmasked)
		}
		if want := billed("plain", chatFormats[0]); !maps.Equal(got, want) {
			t.Errorf("counted %v\nwant %v", got, want)
		}
	})
	t.Run("T38 a longer placeholder saves nothing", func(t *testing.T) {
		url := serve(t, windowOfOne, proxy(upstream(t, new(mcptest.Chat))))
		grown := growth(t)
		post(t, url, twoTurns("AAA"))
		want := map[string]float64{"tool_results_masked_total": 1, "prompt_prefix_breaks_total": 1}
		if got := grown(); !maps.Equal(got, want) {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
	t.Run("T38 usage counts even if the client disconnects", func(t *testing.T) {
		chat := &mcptest.Chat{Usage: usage, Gate: make(chan struct{})}
		address := freeAddress(t)
		load(t, h2cOptions+site(address, conversationMask("route left"), proxy(upstream(t, chat))))
		grown := growth(t)
		res := open(t, client, "POST", "http://"+address+"/v1/messages", streamRequest(anthropicConversation(`"x"`)))
		nextEvent(t, bufio.NewReader(res.Body))
		res.Body.Close()
		await.Until(t, "the input tokens to be counted", func() bool {
			return grown()[`usage_tokens_total{route="left",type="input"}`] == float64(usage.Input)
		})
	})
}

// The access log has the fields of a conversation (T38).
func TestConversationLog(t *testing.T) {
	isolate(t)
	const secret = "geheim"
	text := strings.Repeat(secret, 200)
	chars := len(text) - utf8.RuneCountInString(placeholder("call_1", "read", len(text)))
	log := filepath.Join(t.TempDir(), "access.log")
	logFile := filepath.Join(t.TempDir(), "caddy.log")
	address := freeAddress(t)
	load(t, block("", "debug", block("log", "output file "+logFile, "format json"))+"\n"+
		site(address, block("log", "output file "+log, "format json"),
			block("tool_result_mask /v1/*", "window_turns 1", "buffer_limit 10KiB"), proxy(upstream(t, new(mcptest.Chat)))))
	url := "http://" + address

	type fields struct {
		Masked  *int    `json:"mcp_tool_results_masked"`
		Saved   *int    `json:"mcp_tool_result_chars_saved"`
		Break   *bool   `json:"mcp_prompt_prefix_break"`
		Turns   *int    `json:"mcp_turns"`
		Input   *int    `json:"mcp_usage_input"`
		Cached  *int    `json:"mcp_usage_cached"`
		Written *int    `json:"mcp_usage_cache_write"`
		Output  *int    `json:"mcp_usage_output"`
		Cost    *int    `json:"mcp_cost_sent"`
		Without *int    `json:"mcp_cost_unmasked"`
		Passed  *string `json:"mcp_conversation_passed"`
	}
	chat := oneTurnLater(chatMessage("user", text), callsMessage("call_1 read"), resultMessage("call_1", text))
	used := func(f fields) fields {
		f.Input, f.Cached, f.Output = new(1000), new(800), new(20)
		f.Cost, f.Without = new(80+200), cmp.Or(f.Without, new(80+200))
		return f
	}
	passed := func(reason string) fields { return used(fields{Passed: &reason}) }
	written := used(fields{Turns: new(2)})
	written.Written, written.Cost, written.Without = new(100), new(80+125+100), new(80+125+100)
	tests := []struct {
		name, path, body, encoding string
		want                       fields
	}{
		{"a masked request", "/v1/chat/completions", chat, "", used(fields{Masked: new(1), Saved: &chars, Break: new(true),
			Turns: new(2), Without: new(278)})},
		{"a masked request for a stream", "/v1/chat/completions", streamRequest(chat), "",
			used(fields{Masked: new(1), Saved: &chars, Break: new(true), Turns: new(2), Without: new(276)})},
		{"a masked request that was sent before", "/v1/chat/completions", strings.TrimSuffix(chat, "]}") + "," +
			chatMessage("assistant", secret) + "," + chatMessage("user", secret) + "]}", "",
			// the masked part would have been read from the cache
			used(fields{Masked: new(1), Saved: &chars, Turns: new(2), Without: new(340)})},
		{"a request that is not masked", "/v1/messages", anthropicConversation(`"Traceback: ` + secret + `"`), "", written},
		{"a conversation without turns", "/v1/responses", `{"input":[{"role":"user","content":"` + text + `"}]}`, "",
			used(fields{})},
		{"no JSON", "/v1/chat/completions", text, "", passed("invalid_json")},
		{"broken JSON", "/v1/chat/completions", `{"messages":[{"` + secret + `":"` + secret + `" "` + secret + `"}]}`, "",
			passed("invalid_json")},
		{"a repeated key", "/v1/chat/completions", `{"messages":[{"content":"` + secret + `","content":"` + secret + `"}]}`,
			"", passed("repeated_key")},
		{"no conversation", "/v1/chat/completions", `{"prompt":"` + secret + `"}`, "", passed("shape")},
		{"a bad encoding", "/v1/chat/completions", text, "gzip", passed("encoding")},
		{"a long request", "/v1/chat/completions", strings.Repeat(chat, 10), "", passed("too_large")},
		{"another path", "/v2/chat/completions", chat, "", fields{}},
	}
	client := sequentialClient(t)
	for _, tt := range tests {
		send(t, client, "POST", url+tt.path, tt.body, "Content-Encoding: "+tt.encoding)
	}
	send(t, client, "GET", url, "")

	lines := linesOf(t, log)
	if len(lines) < len(tests) {
		t.Fatalf("got %d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	for _, line := range slices.Concat(lines, linesOf(t, logFile)) {
		if strings.Contains(line, secret) {
			t.Errorf("the log contains the conversation: %s", line)
		}
	}
	for i, tt := range tests {
		t.Run("T38 "+tt.name, func(t *testing.T) {
			logged(t, lines[i], tt.want)
		})
	}
}

// Two masks for one request write one line about it, and each field once.
func TestConversationLogOfChainedMasks(t *testing.T) {
	isolate(t)
	log := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+log, "format json"), block("route", windowOfOne, windowOfOne,
		proxy(upstream(t, new(mcptest.Chat)))))
	client := sequentialClient(t)
	for range 2 { // the second request begins after the log line of the first
		send(t, client, "POST", url+"/v1/chat/completions", b2Sent)
	}
	line := linesOf(t, log)[0]
	for _, field := range []string{"mcp_turns", "mcp_tool_results_masked", "mcp_tool_result_chars_saved",
		"mcp_prompt_prefix_break", "mcp_usage_input", "mcp_usage_output", "mcp_cost_sent", "mcp_cost_unmasked"} {
		if n := strings.Count(line, `"`+field+`":`); n != 1 {
			t.Errorf("%s occurs %d times in %s", field, n, line)
		}
	}
}

// A template without the id of the call gives a warning (T13).
func TestTemplateWarning(t *testing.T) {
	isolate(t)
	for _, tt := range []struct {
		name, line string
		warns      bool
	}{
		{"T13 without the id", `placeholder_template "{tool_name}: {original_chars}"`, true},
		{"T13 with the id", `placeholder_template "{tool_call_id}"`, false},
		{"T13 the default", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "caddy.log")
			load(t, block("", block("log", "output file "+log, "format json"))+"\n"+site(freeAddress(t),
				conversationMask(tt.line), "respond x"))
			warned := slices.ContainsFunc(linesOf(t, log), func(line string) bool {
				return strings.Contains(line, `"level":"warn"`) && strings.Contains(line, "placeholder_template")
			})
			if warned != tt.warns {
				t.Errorf("warned: %t\n%s", warned, strings.Join(linesOf(t, log), "\n"))
			}
		})
	}
}

// Originals that no gateway can read give a warning, also after a reload without the gateway.
func TestUnreadableOriginalsWarning(t *testing.T) {
	isolate(t)
	observations, conversations := block("observation_mask", "recover on"), conversationMask("recover on")
	gateways, mcp := gateway("separator __", "server a http://127.0.0.1:9"), filepath.Join(t.TempDir(), "mcp.json")
	for _, tt := range []struct {
		name, other string
		directives  []string
		warnings    int
	}{
		{"with a gateway", "", []string{observations, conversations, gateways}, 0},
		{"without a gateway", "", []string{observations, conversations}, 2},
		{"with a gateway of another site", gateways, []string{observations, conversations}, 0},
		{"with a gateway without servers", gateway("separator __", "servers_from "+mcp), []string{conversations}, 0},
		{"with a mask of a gateway", "", []string{gateway("separator __", block("mask", "recover on"),
			"server a http://127.0.0.1:9")}, 0},
		{"without recover", "", []string{"observation_mask", conversationMask()}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "caddy.log")
			load(t, block("", block("log", "output file "+log, "format json"))+"\n"+
				site(freeAddress(t), append(tt.directives, "respond x")...)+"\n"+site(freeAddress(t), tt.other))
			warnings := 0
			for _, line := range linesOf(t, log) {
				if strings.Contains(line, `"level":"warn"`) && strings.Contains(line, "no client can read") {
					warnings++
				}
			}
			if warnings != tt.warnings {
				t.Errorf("%d warnings, want %d\n%s", warnings, tt.warnings, strings.Join(linesOf(t, log), "\n"))
			}
		})
	}
}

// `caddy mask-conversation --bill` prints costs.
func TestBinaryBillsConversations(t *testing.T) {
	isolate(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	config := write("Caddyfile", site("127.0.0.1:8080", conversationMask("window_turns 1"), proxy("127.0.0.1:8081")))
	long := turns(12, 0, 4000)
	one := write("logs/one.json", long)
	write("logs/deep/two.jsonl", long+"\n"+turns(3, 0, 8000)+"\n")
	write("logs/deep/broken.traj", long[:500])
	write("logs/deep/notes.txt", "no transcript")
	for _, tt := range []struct {
		name  string
		args  []string
		in    string
		out   []string
		says  string
		fails bool
	}{
		{"a file", []string{one}, "", []string{"request ", "  moved\n", "13 requests, 11 moves"}, "", false},
		{"standard input", nil, long, []string{"13 requests, 11 moves"}, "", false},
		{"a folder", []string{filepath.Join(dir, "logs")}, "", []string{"one.json\n", "two.jsonl#1\n", "two.jsonl#2\n",
			"3 transcripts, 30 requests"}, "broken.traj: ", false},
		{"a missing file", []string{one, filepath.Join(dir, "nowhere")}, "", []string{"1 transcripts"}, "nowhere", false},
		{"as JSON", []string{"--json", one}, "", []string{`"requests": 13`, `"moved": true`, `"bill_ratio": `}, "", false},
		{"no readable file", []string{filepath.Join(dir, "logs/deep/notes.txt")}, "", nil, "notes.txt: invalid character",
			true},
		{"an invalid duration", []string{"--cache-ttl", "-1s", one}, "", nil, "--cache-ttl", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := caddy(t, append([]string{"mask-conversation", "--bill", "--config", config}, tt.args...)...)
			var out, stderr bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(tt.in), &out, &stderr
			if err := cmd.Run(); (err != nil) != tt.fails {
				t.Errorf("%v", err)
			}
			for _, want := range tt.out {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is missing in\n%s", want, &out)
				}
			}
			if !strings.Contains(stderr.String(), tt.says) || strings.Contains(stderr.String()+out.String(), "notes.txt") &&
				!tt.fails {
				t.Errorf("got stderr %s\nwant %s", &stderr, tt.says)
			}
		})
	}
	t.Run("a file without --bill", func(t *testing.T) {
		stderr, err := caddy(t, "mask-conversation", "--config", config, one).CombinedOutput()
		if err != nil || !strings.Contains(string(stderr), "12 turns, the first 11 of them old") {
			t.Errorf("%v: %s", err, stderr)
		}
	})
	t.Run("files without --bill", func(t *testing.T) {
		stderr, err := caddy(t, "mask-conversation", "--config", config, one, one).CombinedOutput()
		if err == nil || !strings.Contains(string(stderr), "expected one file without --bill, got 2") {
			t.Errorf("%v: %s", err, stderr)
		}
	})
}

// `caddy mask-conversation` prints the masked request.
func TestBinaryMasksConversations(t *testing.T) {
	isolate(t)
	several := site("127.0.0.1:8080", block("tool_result_mask /a/*", "window_turns 1", "route first"),
		block("tool_result_mask /b/*", "window_turns 0", "route second"),
		block("handle /c/*", block("tool_result_mask", "window_turns 1", "keep_errors off",
			"placeholder_template <{tool_call_id}>", "route third")))
	inJSON := filepath.Join(t.TempDir(), "caddy.json")
	if err := os.WriteFile(inJSON,
		[]byte(`{"apps":{"http":{"servers":{"s":{"routes":[{"handle":[{"handler":"tool_result_mask",`+
			`"window_turns":1}]}]}}}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	one := site("127.0.0.1:8080", block("tool_result_mask /chat/completions", "window_turns 1"), proxy("127.0.0.1:8081"))
	for _, tt := range []struct {
		name      string
		caddyfile string // none if empty
		implicit  bool   // found in the current directory
		args      []string
		in, want  string
		says      string // on standard error
		fails     bool
	}{
		{"defaults", "", false, nil, turns(9, 0, 500), turns(9, 1, 500),
			"9 turns, the first 1 of them old: 1 results masked", false},
		{"defaults are named", "", false, nil, turns(9, 0, 500), turns(9, 1, 500),
			"no Caddyfile in this directory, using the defaults of tool_result_mask; use --config to name a file\n", false},
		{"a route without a configuration", "", false, []string{"--route", "first"}, b2Sent, "",
			"no Caddyfile in this directory, so no tool_result_mask with the route", true},
		{"nothing to mask", "", false, nil, b2Sent, b2Sent, "0 results masked", false},
		{"a configuration", one, false, nil, b2Sent, b2Masked, "fast_read_file", false},
		{"the configuration in the current directory", one, true, nil, b2Sent, b2Masked, "1 results masked", false},
		{"a configuration in JSON", "", false, []string{"--config", inJSON}, b2Sent, b2Masked, "1 results masked", false},
		{"a missing configuration", "", false, []string{"--config", "nowhere"}, b2Sent, "", "nowhere", true},
		{"messages", one, false, nil, chatFormats[1].sent, chatFormats[1].masked, "1 results masked", false},
		{"responses", one, false, nil, chatFormats[2].sent + "\n", chatFormats[2].masked + "\n", "1 results masked", false},
		{"the first of several", several, false, []string{"--route", "first"}, b2Sent, b2Masked, "1 results masked", false},
		{"the second of several", several, false, []string{"--route", "second"}, b2Sent, b2Sent, "0 results masked", false},
		{"one in a handle block", several, false, []string{"--route", "third"}, b2Sent, strings.Replace(b2Sent, thousand,
			"<call_1>", 1), "1 results masked", false},
		{"one that keeps originals", site("127.0.0.1:8080", conversationMask("window_turns 1", "recover on")), false, nil,
			b2Sent,
			strings.Replace(b2Masked, "chars=1000)", "chars=1000, id=obs_xFegaVfkPt)", 1), "1 results masked", false},
		{"one that delays masking", site("127.0.0.1:8080", conversationMask("clear_at_least auto")), false, nil, b2Sent,
			b2Sent,
			"clear_at_least auto waits: masking now would cost more than it saves", false},
		{"one that is off", site("127.0.0.1:8080", conversationMask("window_turns 1", "enabled off")), false, nil, b2Sent,
			b2Sent, "", false},
		{"several without --route", several, false, nil, b2Sent, "", "--route", true},
		{"an unknown route", several, false, []string{"--route", "fourth"}, b2Sent, "", "fourth", true},
		{"a configuration without the handler", site("127.0.0.1:8080", "respond x"), false, nil, b2Sent, "",
			"has no tool_result_mask", true},
		{"a configuration in the current directory without the handler", site("127.0.0.1:8080", "respond x"), true, nil,
			b2Sent, "", "Caddyfile has no tool_result_mask", true},
		{"an invalid configuration", site("127.0.0.1:8080", conversationMask("placeholder_template {foo}")), false, nil,
			b2Sent, "", "placeholder_template", true},
		{"broken JSON", one, false, nil, b2Sent[:500], b2Sent[:500], "not masked: unexpected EOF", true},
		{"not a conversation", one, false, nil, "{\"prompt\": 1.0}\n", "{\"prompt\": 1.0}\n", "not masked", false},
		{"nothing", "", false, nil, "", "", "not masked", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{"mask-conversation"}, tt.args...)
			if tt.caddyfile != "" {
				file := filepath.Join(dir, "Caddyfile")
				if err := os.WriteFile(file, []byte(tt.caddyfile), 0o600); err != nil {
					t.Fatal(err)
				}
				if !tt.implicit {
					args = append(args, "--config", file)
				}
			}
			cmd := caddy(t, args...)
			cmd.Dir = t.TempDir()
			if tt.implicit {
				cmd.Dir = dir
			}
			var out, stderr bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(tt.in), &out, &stderr
			if err := cmd.Run(); (err != nil) != tt.fails {
				t.Errorf("%v", err)
			}
			same(t, out.String(), tt.want)
			if !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("got stderr %s\nwant %s", &stderr, tt.says)
			}
		})
	}
}
