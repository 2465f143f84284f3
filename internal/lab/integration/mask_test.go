package integration

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// TestMask compares the masked response of single requests byte by byte.
func TestMask(t *testing.T) {
	isolate(t)
	repeat := strings.Repeat
	long := `"` + repeat("A", 5000) + `"`
	longCut := `"` + cut("A", 5000, 2000, 2000) + `"`
	encoded := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("\x00\x10\x83"), 2000))
	nested := func(leaf string) string {
		return repeat(`{"before":[1.0,null],"in":["sibling",`, 10) + leaf + repeat(`,true],"after":"`+repeat("s", 4000)+`"}`,
			10)
	}
	media := func(data string) string {
		return `{"content":[{"type":"image","data":` + data + `},{"data":` + data + `,"type":"audio"},` +
			`{"resource":{"uri":"file:///x","blob":` + data + `}},{"resource":{"blob":` + data + `,"uri":"file:///x"}}]}`
	}

	type row struct {
		name      string
		directive string // default: observation_mask
		request   string
		want      string
	}
	unchanged := func(name, directive, body string, members ...string) row {
		return row{name, directive, raw(body, members...), body}
	}
	tests := []row{
		{"O1 defaults", "", rpc("big", `{"n":10000}`), result(`"` + cut("A", 10000, 2000, 2000) + `"`)},
		{"O2 4000 characters are unchanged", "", rpc("big", `{"n":4000}`), result(`"` + repeat("A", 4000) + `"`)},
		{"O2 4001 characters are masked", "", rpc("big", `{"n":4001}`), result(`"` + cut("A", 4001, 2000, 2000) + `"`)},
		{"O3 head, marker, tail", "observation_mask 50 10 20", raw(result(`"` + repeat("a", 30) + repeat("z", 30) + `"`)),
			result(`"` + repeat("a", 10) + `\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=60 head=10 tail=20] ...\n` +
				repeat("z", 20) + `"`)},
		{"O4 characters beyond the BMP count as one", "", rpc("big", `{"n":4001,"c":"😀"}`),
			result(`"` + cut("😀", 4001, 2000, 2000) + `"`)},
		{"O4 escaped surrogate pairs count as one", "", rpc("big", `{"n":4001,"c":"\ud83d\ude00"}`),
			result(`"` + cut(`\ud83d\ude00`, 4001, 2000, 2000) + `"`)},
		{"O4 4000 characters of four bytes are unchanged", "", rpc("big", `{"n":4000,"c":"😀"}`),
			result(`"` + repeat("😀", 4000) + `"`)},
		{"O5 a leaf twenty levels deep", "", rpc("echo", nested(long)), result(nested(longCut))},
		{"O6 keys, numbers and white space are unchanged", "",
			rpc("echo", `{ "`+repeat("k", 5000)+`" : [ 12345678901234567890, 1.0, 1e2, -0, true, null, "\u00e9\/" ],`+"\n\t"+
				`"s":`+long+` }`),
			result(`{ "` + repeat("k", 5000) + `" : [ 12345678901234567890, 1.0, 1e2, -0, true, null, "\u00e9\/" ],` + "\n\t" +
				`"s":` + longCut + ` }`)},
		unchanged("O7 the rest of the envelope is unchanged", "", `{"jsonrpc":"2.0","id":`+long+
			`,"error":{"code":-1,"message":`+long+`},"x":`+long+`}`),
		unchanged("O7 server requests are unchanged", "",
			`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"text":`+long+`}}`),
		{"O7 error.data is masked", "", rpc("err", `{"n":10000}`),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":"boom","data":"` + cut("E", 10000, 2000, 2000) + `"}}`},
		{"O7 jsonrpc after the result", "", raw(`{"result":` + long + `,"id":1,"jsonrpc":"2.0"}`), `{"result":` + longCut +
			`,"id":1,"jsonrpc":"2.0"}`},
		{"O9 base64", "", raw(result(`"` + encoded + `"`)), result(`"` + encoded[:2000] + marker(8000, 2000, 2000, "") +
			encoded[6000:] + `"`)},
		{"O9 media without keep_media", "", raw(result(media(long))), result(media(longCut))},
		unchanged("O10 max_chars 0", mask("max_chars 0"), result(long)),
		unchanged("O10 negative max_chars", mask("max_chars -1"), result(long)),
		unchanged("O10 off", "observation_mask off", result(long)),
		{"O10 no head", "observation_mask 100 0 50", rpc("big", `{"n":101}`), result(`"` + cut("A", 101, 0, 50) + `"`)},
		{"O10 no tail", "observation_mask 100 50 0", rpc("big", `{"n":101}`), result(`"` + cut("A", 101, 50, 0) + `"`)},
		{"O10 neither", "observation_mask 100 0 0", rpc("big", `{"n":101}`), result(`"` + cut("A", 101, 0, 0) + `"`)},
		{"O11 head and tail are half of a small max", mask("max_chars 101"), rpc("big", `{"n":102}`),
			result(`"` + cut("A", 102, 50, 50) + `"`)},
		unchanged("O2 max_chars larger than any string", mask("max_chars 4611686018427387904"),
			result(`"`+repeat("A", 1<<20)+`"`)),
		unchanged("O13 JSON-RPC as text/plain", "", result(long), `"ctype":"text/plain"`),
		unchanged("O13 JSON-RPC without a Content-Type", "", result(long), `"ctype":""`),
		unchanged("O13 JSON without jsonrpc", "", `{"id":1,"result":`+long+`}`),
		unchanged("O13 a type that only starts like JSON", "", result(long), `"ctype":"application/jsonl"`),
		unchanged("O13 HTML", "", `<p title=`+long+`>`, `"ctype":"text/html"`),
		{"O13 +json with parameters", "", raw(result(long), `"ctype":"application/vnd.x+json; charset=utf-8"`),
			result(longCut)},
		{"O13 an uppercase Content-Type", "", raw(result(long), `"ctype":"Application/JSON"`), result(longCut)},
		{"O13 an error status", "", raw(result(long), `"status":500`), result(longCut)},
		{"O15 gzip that the client accepts", "", raw(result(long), `"gzip":true`), result(longCut)},
		{"O17 an array of messages", "", raw(`[` + result(long) + `, {"jsonrpc":"2.0","method":"x","params":` + long +
			`},{"result":` + long + `},` + result(long) + `]`),
			`[` + result(longCut) + `, {"jsonrpc":"2.0","method":"x","params":` + long + `},{"result":` + long + `},` +
				result(longCut) + `]`},
		{"O19 depth 999", "", raw(result(repeat("[", 998) + long + repeat("]", 998))),
			result(repeat("[", 998) + longCut + repeat("]", 998))},
		unchanged("O19 depth 1001", "", result(repeat("[", 1000)+long+repeat("]", 1000))),
		unchanged("O19 depth 100000", "", result(repeat("[", 100000)+long+repeat("]", 100000))),
		{"O19 lone surrogates", "", rpc("big", `{"n":4001,"c":"\ud800"}`), result(`"` + cut(`\ud800`, 4001, 2000, 2000) +
			`"`)},
		{"O19 lone low surrogates", "", rpc("big", `{"n":4001,"c":"\ude00"}`), result(`"` + cut(`\ude00`, 4001, 2000, 2000) +
			`"`)},
		{"O19 invalid UTF-8", "", rpc("echo", `"`+repeat("\xff", 4001)+`"`), result(`"` + cut("\xff", 4001, 2000, 2000) +
			`"`)},
		unchanged("O19 a repeated result", "", `{"jsonrpc":"2.0","id":1,"result":`+long+`,"result":`+long+`}`),
		unchanged("O19 a repeated jsonrpc", "", `{"jsonrpc":"2.0","id":1,"result":`+long+`,"jsonrpc":"1.0"}`),
		{"O19 repeated keys inside the result", "", raw(result(`{"a":` + long + `,"a":` + long + `}`)),
			result(`{"a":` + longCut + `,"a":` + longCut + `}`)},
		unchanged("O19 broken JSON", "", `{"jsonrpc":"2.0","id":1,"result":`+long),
		unchanged("O19 no body", "", ``),
		{"O20 below the limit", mask("buffer_limit 1MiB"), raw(result(long)), result(longCut)},
		{"O20 below the limit, without Content-Length", mask("buffer_limit 1MiB"), raw(result(long), `"chunked":true`),
			result(longCut)},
		unchanged("O20 above the limit", mask("buffer_limit 1MiB"), result(`"`+repeat("A", 5<<20)+`"`)),
		unchanged("O20 above the limit, without Content-Length", mask("buffer_limit 1MiB"),
			result(`"`+repeat("A", 5<<20)+`"`), `"chunked":true`),
		unchanged("O20 above the limit, compressed", mask("buffer_limit 1MiB"), result(`"`+repeat("A", 5<<20)+`"`),
			`"gzip":true`),
		{"O20 no limit", "", rpc("big", `{"n":5000000}`), result(`"` + cut("A", 5000000, 2000, 2000) + `"`)},
		{"O21 the nested shape", "", raw(result(`{"items":["` + repeat("B", 9000) + `",{"inner":"` + repeat("C", 8000) +
			`"}],"ok":"short"}`)),
			result(`{"items":["` + cut("B", 9000, 2000, 2000) + `",{"inner":"` + cut("C", 8000, 2000, 2000) +
				`"}],"ok":"short"}`)},
		unchanged("O22 keep_media", mask("keep_media"), result(media(long))),
		{"O22 keep_media masks everything but media", mask("keep_media"),
			raw(result(`[{"type":"text","data":` + long + `,"text":` + long + `},{"blob":` + long + `}]`)),
			result(`[{"type":"text","data":` + longCut + `,"text":` + longCut + `},{"blob":` + longCut + `}]`)},
	}
	stub := upstream(t, new(mcptest.Stub))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.directive == "" {
				tt.directive = "observation_mask"
			}
			url := serve(t, tt.directive, proxy(stub))
			got := post(t, url, tt.request, "Accept-Encoding: gzip")
			same(t, got.body, tt.want)
			if length := got.ContentLength; length >= 0 && length != int64(len(got.body)) {
				t.Errorf("Content-Length %d of %d bytes", length, len(got.body))
			}
		})
	}
}

func TestMaskedLength(t *testing.T) {
	isolate(t)
	url := serve(t, "observation_mask", proxy(upstream(t, new(mcptest.Stub))))
	for n, want := range map[int]int{4000: 4000, 4001: 4081, 10000: 4082, 1000000: 4084} {
		t.Run(fmt.Sprintf("O8 %d characters become %d", n, want), func(t *testing.T) {
			var response struct{ Result string }
			if err := json.Unmarshal([]byte(post(t, url, rpc("big", fmt.Sprintf(`{"n":%d}`, n))).body), &response); err != nil {
				t.Fatal(err)
			}
			if got := utf8.RuneCountInString(response.Result); got != want {
				t.Errorf("%d characters", got)
			}
		})
	}
}

func TestHopsDoNotMaskTwice(t *testing.T) {
	isolate(t)
	handle := regexp.MustCompile(` id=obs_[A-Za-z0-9]{10}]` + regexp.QuoteMeta(hint))
	tests := []struct {
		name         string
		inner, outer string // in the order the response passes them
		want         string
	}{
		{"O12 the same mask twice", "observation_mask", "observation_mask", cut("A", 5000, 2000, 2000)},
		{"O12 handles only in the inner mask", mask("recover"), "observation_mask", cut("A", 5000, 2000, 2000)},
		{"O12 handles only in the outer mask", "observation_mask", mask("recover"), cut("A", 5000, 2000, 2000)},
		{"O12 a larger mask outside", "observation_mask 100 40 60", "observation_mask 200 100 100", cut("A", 5000, 40, 60)},
		{"O12 head and tail add up to the maximum", "observation_mask 4001 2000 2001", "observation_mask 4001 1 1",
			cut("A", 5000, 2000, 2001)},
	}
	stub := upstream(t, new(mcptest.Stub))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inner, outer := freeAddress(t), freeAddress(t)
			load(t, site(outer, tt.outer, proxy(inner))+site(inner, tt.inner, proxy(stub)))
			first := post(t, "http://"+outer, rpc("big", `{"n":5000}`)).body
			same(t, handle.ReplaceAllString(first, "]"), result(`"`+tt.want+`"`))
			if again := post(t, "http://"+outer, rpc("big", `{"n":5000}`)).body; again != first {
				same(t, again, first)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	isolate(t)
	members := `"status":203,"headers":{"ETag":"\"v1\"","Digest":"sha-256=x","Content-Digest":"sha-256=:x:",` +
		`"Repr-Digest":"sha-256=:x:",` +
		`"Content-MD5":"x","Last-Modified":"Mon, 02 Jan 2006 15:04:05 GMT","Mcp-Session-Id":"s","X-Other":"kept"}`
	long := result(`"` + strings.Repeat("A", 5000) + `"`)
	tests := []struct {
		name    string
		method  string
		request string
		dropped []string // headers missing besides Content-Length
		want    string   // expected body; default: the upstream's
	}{
		{"O14 nothing masked", "POST", raw(result(`"short"`), members), nil, ""},
		{"O14 masked", "POST", raw(long, members), []string{"Etag", "Digest", "Content-Digest", "Repr-Digest",
			"Content-Md5"}, result(`"` + cut("A", 5000, 2000, 2000) + `"`)},
		{"O14 not JSON-RPC", "POST", raw(`{"result":`+strings.Repeat("1", 5000)+`}`, members), nil, ""},
		{"O18 HEAD", "HEAD", raw(long, members), nil, ""},
		{"O18 HEAD of a compressed body", "HEAD", raw(long, members, `"encoding":"gzip"`), nil, ""},
		{"O18 HEAD of a stream", "HEAD", raw(long, members, `"ctype":"text/event-stream"`), nil, ""},
		{"O18 204", "POST", raw("", `"status":204,"headers":{"ETag":"\"v1\"","X-Other":"kept"}`), nil, ""},
		{"O18 204 of a stream", "POST", raw("", `"status":204,"ctype":"text/event-stream","headers":{"ETag":"\"v1\""}`), nil,
			""},
		{"O18 304", "POST", raw("", `"status":304,"headers":{"ETag":"\"v1\"","Content-Length":"5040"}`), nil, ""},
		{"O18 202 of a notification", "POST", `{"jsonrpc":"2.0","method":"note"}`, nil, ""},
	}
	stub := upstream(t, new(mcptest.Stub))
	url := serve(t, "observation_mask", proxy(stub))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := send(t, client, tt.method, "http://"+stub, tt.request)
			got := send(t, client, tt.method, url, tt.request)
			if tt.want != "" {
				want.body = tt.want
				want.Header.Set("Content-Length", strconv.Itoa(len(tt.want)))
			}
			for _, name := range tt.dropped {
				if want.Header.Get(name) == "" {
					t.Errorf("the upstream sent no %s", name)
				}
				want.Header.Del(name)
			}
			for _, header := range []http.Header{want.Header, got.Header} {
				for _, name := range []string{"Date", "Server", "Via"} { // set by the proxy
					header.Del(name)
				}
			}
			same(t, got.body, want.body)
			if got.StatusCode != want.StatusCode || !reflect.DeepEqual(got.Header, want.Header) {
				t.Errorf("got %s %v\nwant %s %v", got.Status, got.Header, want.Status, want.Header)
			}
		})
	}
}

// TestBeforeAndAfterTheResponse uses an upstream that sends early hints, a response
// and trailers. The client must receive all of them.
func TestBeforeAndAfterTheResponse(t *testing.T) {
	isolate(t)
	for _, text := range []string{"short", strings.Repeat("A", 5000)} {
		for _, announced := range []bool{true, false} {
			t.Run(fmt.Sprintf("O14 %d characters, trailer announced %t", len(text), announced), func(t *testing.T) {
				address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Link", "</x>; rel=preload")
					w.WriteHeader(http.StatusEarlyHints)
					w.Header().Set("Content-Type", "application/json")
					trailer := http.TrailerPrefix + "X-After"
					if announced {
						trailer = "X-After"
						w.Header().Set("Trailer", trailer)
					}
					_, _ = io.WriteString(w, result(`"`+text+`"`))
					_ = http.NewResponseController(w).Flush()
					w.Header().Set(trailer, "all")
				}))
				var hints []string
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
						hints = append(hints, fmt.Sprint(code, " ", header.Get("Link")))
						return nil
					},
				})
				res, err := client.Do(request(t, ctx, "POST", serve(t, "observation_mask", proxy(address)), rpc("x", "{}")))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err != nil {
					t.Fatal(err)
				}
				want := text
				if len(text) > 4000 {
					want = cut("A", len(text), 2000, 2000)
				}
				same(t, string(body), result(`"`+want+`"`))
				if len(hints) != 1 || hints[0] != "103 </x>; rel=preload" {
					t.Errorf("early hints %q", hints)
				}
				if got := res.Trailer.Get("X-After"); got != "all" {
					t.Errorf("trailer %q in %v", got, res.Trailer)
				}
			})
		}
	}
}

// TestNotModified uses an upstream that sends a 304 with the Content-Type of a stream,
// which net/http would not send (O18).
func TestNotModified(t *testing.T) {
	isolate(t)
	address := rawUpstream(t, func(conn net.Conn, _ *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 304 Not Modified\r\nContent-Type: text/event-stream\r\nETag: \"v1\"\r\n\r\n")
	})
	got := post(t, serve(t, "observation_mask", proxy(address)), rpc("x", "{}"))
	if got.StatusCode != http.StatusNotModified || got.Header.Get("Etag") != `"v1"` || got.body != "" {
		t.Errorf("got %s %v %q", got.Status, got.Header, got.body)
	}
}

// TestFileServer uses a handler that calls ReadFrom on the response, while reverse_proxy
// calls Write.
func TestFileServer(t *testing.T) {
	isolate(t)
	root := t.TempDir()
	long := result(`"` + strings.Repeat("A", 5000) + `"`)
	for _, name := range []string{"response.json", "response.txt"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(long), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := serve(t, "root "+root, "observation_mask", "file_server")
	for _, tt := range []struct{ name, path, bytes, want string }{
		{"O13 JSON", "/response.json", "", result(`"` + cut("A", 5000, 2000, 2000) + `"`)},
		{"O13 text", "/response.txt", "", long},
		{"O19 part of a JSON file", "/response.json", "bytes=10-", long[10:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			same(t, send(t, client, "GET", url+tt.path, "", "Range: "+tt.bytes).body, tt.want)
		})
	}
}

// compress encodes a body with a Content-Encoding.
func compress(t *testing.T, encoding, body string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch encoding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "br":
		w = brotli.NewWriter(&b)
	case "zstd":
		w, _ = zstd.NewWriter(&b) // fails only for invalid options
	default:
		return body
	}
	_, _ = io.WriteString(w, body)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// compressing starts an upstream that encodes its response, whatever the client accepts.
func compressing(t *testing.T, encoding, body string) string {
	t.Helper()
	encoded := compress(t, encoding, body)
	return upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", encoding)
		w.Header().Set("Etag", `"v1"`)
		_, _ = io.WriteString(w, encoded)
	}))
}

func TestCompressedUpstreams(t *testing.T) {
	isolate(t)
	plain := result(`"` + strings.Repeat("A", 5000) + `"`)
	masked := result(`"` + cut("A", 5000, 2000, 2000) + `"`)
	tests := []struct {
		name     string
		encoding string
		asIs     bool // do not let Go's transport decode gzip
		body     string
		want     string
		kept     bool // headers are unchanged
	}{
		{"O15 gzip decoded by the transport", "gzip", false, plain, masked, false},
		{"O15 gzip without a request for it", "gzip", true, plain, masked, false},
		{"O15 zstd without a request for it", "zstd", false, plain, masked, false},
		{"O15 br without a request for it", "br", false, plain, masked, false},
		{"O15 br with nothing to mask", "br", false, result("1"), result("1"), false},
		{"O15 identity", "identity", false, plain, masked, false},
		{"O15 an unknown encoding passes unchanged", "x-secret", false, plain, plain, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			forward := proxy(compressing(t, tt.encoding, tt.body))
			if tt.asIs {
				forward = block(forward, block("transport http", "compression off"))
			}
			url := serve(t, "observation_mask", forward)
			for _, accept := range []string{"", "gzip, br, zstd"} {
				got := post(t, url, rpc("ping", "{}"), "Accept-Encoding: "+accept)
				same(t, got.body, tt.want)
				encoding, etag := got.Header.Get("Content-Encoding"), got.Header.Get("Etag")
				if tt.kept && (encoding != tt.encoding || etag == "") || !tt.kept && encoding+etag != "" {
					t.Errorf("Content-Encoding %q, ETag %s", encoding, etag)
				}
			}
		})
	}
}

func TestCompressionForTheClient(t *testing.T) {
	isolate(t)
	stub := new(mcptest.Stub)
	url := serve(t, "encode gzip", "observation_mask", proxy(upstream(t, stub)))
	want := result(`"` + cut("A", 5000, 2000, 2000) + `"`)
	for _, upstreamCompresses := range []bool{true, false} {
		for _, accept := range []string{"gzip", "identity", ""} {
			t.Run(fmt.Sprintf("O15 client accepts %q, upstream compresses %t", accept, upstreamCompresses), func(t *testing.T) {
				request := raw(result(`"`+strings.Repeat("A", 5000)+`"`), `"gzip":`+strconv.FormatBool(upstreamCompresses))
				res := open(t, client, "POST", url, request, "Accept-Encoding: "+accept)
				got, err := io.ReadAll(decoded(t, res, strings.TrimPrefix(accept, "identity")))
				if err != nil {
					t.Fatal(err)
				}
				if asked := stub.Last().Headers.Get("Accept-Encoding"); asked != "gzip" {
					t.Errorf("the upstream received Accept-Encoding %q", asked)
				}
				same(t, string(got), want)
			})
		}
	}
}

func TestHandles(t *testing.T) {
	isolate(t)
	url := serve(t, mask("recover"), proxy(upstream(t, new(mcptest.Stub))))
	pattern := regexp.MustCompile(` id=(obs_[A-Za-z0-9]{10})] `)
	handle := func(t *testing.T, c string, n int) string {
		t.Helper()
		got := post(t, url, rpc("big", fmt.Sprintf(`{"n":%d,"c":%q}`, n, c))).body
		match := pattern.FindStringSubmatch(got)
		if match == nil {
			t.Fatalf("no handle in %.100s…", got[2000:])
		}
		same(t, got, result(`"`+strings.Repeat(c, 2000)+marker(n, 2000, 2000, match[1])+strings.Repeat(c, 2000)+`"`))
		return match[1]
	}
	first := handle(t, "A", 5000)
	t.Run("O23 equal for equal content", func(t *testing.T) {
		if again := handle(t, "A", 5000); again != first {
			t.Errorf("%s, then %s", first, again)
		}
	})
	t.Run("O23 different for different content", func(t *testing.T) {
		if handle(t, "A", 5001) == first || handle(t, "B", 5000) == first {
			t.Error("different content has the same handle")
		}
	})
	t.Run("O23 the same after a reload", func(t *testing.T) {
		url = serve(t, mask("recover", "keep_media"), proxy(upstream(t, new(mcptest.Stub))))
		if again := handle(t, "A", 5000); again != first {
			t.Errorf("%s, then %s", first, again)
		}
	})
	t.Run("O23 none for content too large to keep", func(t *testing.T) {
		url := serve(t, mask(block("recover", "max_bytes 36KiB")), proxy(upstream(t, new(mcptest.Stub))))
		same(t, post(t, url, rpc("big", `{"n":5000}`)).body, result(`"`+cut("A", 5000, 2000, 2000)+`"`))
	})
}

func TestExempt(t *testing.T) {
	isolate(t)
	sample := upstream(t, mcpsample.NewServer())
	call := rpc("tools/call", `{"name":"read_log","arguments":{"lines":2000}}`)
	whole := post(t, "http://"+sample, call).body
	tests := []struct {
		name   string
		lines  []string
		exempt bool
	}{
		{"O24 the tool", []string{"server sample", "exempt sample::read_log"}, true},
		{"O24 a pattern", []string{"server sample", "exempt other::x sample::read_*"}, true},
		{"O24 any server", []string{"exempt *::read_log"}, true},
		{"O24 another tool", []string{"server sample", "exempt sample::read_image"}, false},
		{"O24 another server", []string{"server sample", "exempt other::*"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, mask(tt.lines...), proxy(sample))
			for _, accept := range []string{"application/json", "application/json, text/event-stream"} {
				got := post(t, url, call, "Accept: "+accept).body
				if strings.Contains(got, "KIMI_PROXY_OBSERVATION_MASKED") == tt.exempt {
					t.Errorf("accepting %s: %d bytes, %d unmasked", accept, len(got), len(whole))
				}
				if tt.exempt && !strings.Contains(got, whole) {
					t.Errorf("accepting %s: changed", accept)
				}
			}
		})
	}
}

// TestManyAtOnce checks that concurrent responses do not mix (O12, G22).
func TestManyAtOnce(t *testing.T) {
	isolate(t)
	url := serve(t, "observation_mask 100 10 20", proxy(upstream(t, new(mcptest.Stub))))
	const clients = 40
	done := make(chan error, clients)
	for i := range clients {
		go func() {
			done <- func() error {
				letter, n := string(rune('A'+i%26)), 101+i*i*100
				request := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"big","params":{"n":%d,"c":%q}}`, i, n, letter)
				res, err := client.Post(url, "application/json", strings.NewReader(request))
				if err != nil {
					return err
				}
				defer res.Body.Close()
				got, err := io.ReadAll(res.Body)
				if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":"%s"}`, i, cut(letter, n, 10, 20)); err == nil &&
					string(got) != want {
					err = fmt.Errorf("got %.200s, want %s", got, want)
				}
				return err
			}()
		}()
	}
	for range clients {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

const maskedMarker = "[KIMI_PROXY_OBSERVATION_MASKED original_chars=5000 "

// longText has more characters than masks keep by default.
var longText = strings.Repeat("A", 5000)

// describingResults maps methods to results that describe a server. Each has a long string, also
// in schemas.
var describingResults = map[string]string{
	"initialize": `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"},` +
		`"instructions":"` + longText + `"}`,
	"tools/list": `{"nextCursor":"` + longText + `","tools":[{"name":"read","description":"` + longText + `",` +
		`"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"` + longText + `"}}}}]}`,
	"prompts/list":   `{"prompts":[{"name":"p","description":"` + longText + `"}]}`,
	"resources/list": `{"resources":[{"name":"r","uri":"file:///r","description":"` + longText + `"}]}`,
	"resources/templates/list": `{"resourceTemplates":[{"name":"r","uriTemplate":"file:///{r}","description":"` +
		longText + `"}]}`,
}

// observationResults maps methods to results that a mask shortens.
var observationResults = map[string]string{
	"tools/call": `{"content":[{"type":"text","text":"` + longText + `"}],"structuredContent":{"tools":["` +
		longText + `"]}}`,
	"prompts/get":    `{"messages":[{"role":"user","content":{"type":"text","text":"` + longText + `"}}]}`,
	"resources/read": `{"contents":[{"uri":"file:///r","text":"` + longText + `"}]}`,
}

// cutIn returns a result after a mask with the default limits.
func cutIn(result string) string {
	return strings.ReplaceAll(result, longText, cut("A", len(longText), 2000, 2000))
}

// newDescribingServer starts a server that has these results. A GET returns all of them as events,
// a batch returns all of them as an array.
func newDescribingServer(t *testing.T) (_ *remoteServer, methods []string) {
	t.Helper()
	replies := map[string]string{}
	for _, results := range []map[string]string{describingResults, observationResults} {
		for method, value := range results {
			replies[method] = `"result":` + value
			methods = append(methods, method)
		}
	}
	return serveScript(t, &mcptest.Script{Legacy: true, Sessionless: true, Replies: replies,
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			var messages []string
			for _, method := range methods {
				messages = append(messages, result(describingResults[method]+observationResults[method]))
			}
			switch {
			case r.Method == http.MethodGet:
				r.Stream(w, messages...)
			case strings.HasPrefix(r.Body, "["):
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte("[" + strings.Join(messages, ",") + "]"))
			default:
				return false
			}
			return true
		}}), methods
}

// O25: descriptions of a server are never masked, results only where the configuration says so.
func TestWhereResultsAreMasked(t *testing.T) {
	isolate(t)
	server, methods := newDescribingServer(t)
	line := server.line("stub")
	alone := func(url, _ string) string { return url + "/mcp" }
	for _, tt := range []struct {
		name       string
		directives []string
		at         func(url, server string) string
		masks      bool
		listens    bool // the endpoint supports GET
	}{
		{"alone", []string{"observation_mask", proxy(server.address)}, alone, true, true},
		{"rpc", []string{gateway(line)}, rpcAt, true, false},
		{"rpc, masked by the gateway", []string{gateway("mask 4000 2000 2000", line)}, rpcAt, true, false},
		{"rpc, not masked", []string{gateway("mask off", line)}, rpcAt, false, false},
		{"a server", []string{gateway(line)}, mcpAt, false, true},
		{"a server, masked by the gateway", []string{gateway("mask 4000 2000 2000", line)}, mcpAt, true, true},
		{"a server, masked by itself", []string{gateway(block(line, "mask"))}, mcpAt, true, true},
		{"a server, not masked by itself", []string{gateway("mask", block(line, "mask off"))}, mcpAt, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			endpoint := tt.at(serve(t, tt.directives...), "stub")
			observe := func(value string) string {
				if !tt.masks {
					return value
				}
				return cutIn(value)
			}
			for method, value := range describingResults {
				same(t, post(t, endpoint, rpc(method, `{}`)).body, result(value))
			}
			for method, value := range observationResults {
				same(t, post(t, endpoint, rpc(method, `{"name":"read","uri":"file:///r"}`)).body, result(observe(value)))
			}
			var want []string
			for _, method := range methods {
				want = append(want, result(describingResults[method]+observe(observationResults[method])))
			}
			if tt.listens {
				got := send(t, client, "GET", endpoint, "", "Accept: text/event-stream").body
				for _, message := range want {
					if !strings.Contains(got, "data: "+message+"\n") {
						t.Errorf("the stream lacks %.100s…", message)
					}
				}
			}
			if tt.name == "alone" { // a gateway does not accept batches
				same(t, post(t, endpoint, "["+rpc("tools/list", `{}`)+"]").body, "["+strings.Join(want, ",")+"]")
			}
		})
	}
}

// O25 at /mcp, where the gateway merges the lists itself.
func TestAggregateDescriptionsAreNotMasked(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, `{"name":"read","description":"`+longText+
		`","inputSchema":{"type":"object","description":"`+longText+`"}}`)
	server.Replies = map[string]string{"read": mcptest.Text(longText)}
	for _, tt := range []struct {
		name   string
		masks  bool
		handle bool
		lines  []string
	}{
		{"not masked", false, false, []string{server.line("stub")}},
		{"masked on a line", true, false, []string{"mask 4000 2000 2000", server.line("stub")}},
		{"masked by a block", true, true, []string{block("mask", "max_chars 4000"), server.line("stub")}},
		{"masked by a block of the server", true, true,
			[]string{block(server.line("stub"), block("mask 4000 2000 2000", "keep_media on"))}},
		{"masked by a block that says otherwise", true, false, []string{block("mask", "recover off"), server.line("stub")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, gateway(append([]string{"separator __"}, tt.lines...)...))
			for _, era := range clientEras {
				c := newTestClient(t, joinedAt(url), era.modern, `{}`)
				list := string(c.ask(t, "tools/list", `{}`).answer.Result)
				if strings.Count(list, longText) != 2 || strings.Contains(list, maskedMarker) {
					t.Errorf("%s: got %.300s…", era.name, list)
				}
				if strings.Contains(list, `"recover_observation"`) != tt.handle {
					t.Errorf("%s: recover_observation, want %t", era.name, tt.handle)
				}
				text := c.use(t, "stub", "read", `{}`)
				if strings.Contains(text, maskedMarker) != tt.masks || handlePattern.MatchString(text) != tt.handle || !tt.masks &&
					text != longText {
					t.Errorf("%s: got %.300s…", era.name, text)
				}
			}
		})
	}
}

// O22, O25: a mask block keeps media unless it says otherwise.
func TestMediaInMaskBlocks(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "draw")
	image := `{"content":[{"type":"image","mimeType":"image/png","data":"` + longText + `"}]}`
	server.Replies = map[string]string{"draw": `"result":` + image}
	for _, tt := range []struct {
		mask  string
		whole bool
	}{
		{"mask 4000 2000 2000", false},
		{"mask", false},
		{block("mask", "max_chars 4000"), true},
		{block("mask 4000 2000 2000", "recover off"), true},
		{block("mask", "keep_media off", "recover off"), false},
	} {
		for _, lines := range [][]string{{tt.mask, server.line("stub")}, {block(server.line("stub"), tt.mask)}} {
			url := serve(t, gateway(lines...))
			want := cutIn(image)
			if tt.whole {
				want = image
			}
			for _, endpoint := range []string{rpcAt(url, "stub"), mcpAt(url, "stub")} {
				same(t, post(t, endpoint, rpc("tools/call", `{"name":"draw"}`)).body, result(want))
			}
		}
	}
}

// O24: exempt takes the same patterns for prompts and resources as client rules.
func TestExemptPromptsAndResources(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "read")
	server.Resources = []string{"file:///logs/a", "file:///r"}
	server.Replies = map[string]string{}
	for method, value := range observationResults {
		server.Replies[method] = `"result":` + value
	}
	asks := map[string][2]string{ // exempt requests by pattern
		"docs::read":                       {"tools/call", `{"name":"read","uri":"file:///r"}`},
		"tool:docs::re*":                   {"tools/call", `{"name":"read"}`},
		"prompt:docs::summar*":             {"prompts/get", `{"name":"summary"}`},
		"resource:docs::file:///logs":      {"resources/read", `{"uri":"file:///logs/a"}`},
		"resource:file:///r":               {"resources/read", `{"uri":"file:///r"}`},
		"docs::*":                          {"prompts/get", `{"name":"other"}`},
		"prompt:*::* resource:docs::http:": {"prompts/get", `{"name":"other"}`},
	}
	others := map[string][][2]string{ // requests that the pattern does not exempt
		"docs::read":           {{"prompts/get", `{"name":"read"}`}, {"resources/read", `{"uri":"file:///r"}`}},
		"tool:docs::re*":       {{"tools/call", `{"name":"write"}`}},
		"prompt:docs::summar*": {{"tools/call", `{"name":"summary"}`}, {"prompts/get", `{"name":"other"}`}},
		"resource:docs::file:///logs": {{"resources/read", `{"uri":"file:///logs/../r"}`},
			{"resources/read", `{"uri":"file:///logs2"}`}},
		"resource:file:///r":               {{"resources/read", `{"uri":"file:///logs/a"}`}},
		"prompt:*::* resource:docs::http:": {{"resources/read", `{"uri":"file:///r"}`}},
	}
	for pattern, ask := range asks {
		t.Run(pattern, func(t *testing.T) {
			whole := observationResults[ask[0]]
			check := func(endpoint string) {
				t.Helper()
				same(t, post(t, endpoint, rpc(ask[0], ask[1])).body, result(whole))
				for _, other := range others[pattern] {
					same(t, post(t, endpoint, rpc(other[0], other[1])).body, result(cutIn(observationResults[other[0]])))
				}
			}
			check(serve(t, mask("server docs", "exempt "+pattern), proxy(server.address)) + "/mcp")
			url := serve(t, gateway("separator __", block("mask", "recover off", "exempt "+pattern), server.line("docs")))
			check(rpcAt(url, "docs"))
			check(mcpAt(url, "docs"))
		})
	}
	t.Run("at the aggregate", func(t *testing.T) {
		url := serve(t, gateway("separator __", block("mask", "exempt prompt:docs::summary resource:docs::file:///logs"),
			server.line("docs")))
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			for _, ask := range []struct {
				method, params string
				masked         bool
			}{
				{"tools/call", `{"name":"docs__read","arguments":{}}`, true},
				{"prompts/get", `{"name":"docs__summary"}`, false},
				{"prompts/get", `{"name":"docs__other"}`, true},
				{"resources/read", readURI("file:///logs/a"), false},
				{"resources/read", readURI("file:///r"), true},
			} {
				got := string(c.ask(t, ask.method, ask.params).answer.Result)
				if strings.Contains(got, maskedMarker) != ask.masked || !ask.masked && !strings.Contains(got, longText) {
					t.Errorf("%s, %s %s: got %.300s…", era.name, ask.method, ask.params, got)
				}
			}
		}
	})
}

// handlePattern matches the handle in a masked text.
var handlePattern = regexp.MustCompile(`\[KIMI_PROXY_OBSERVATION_MASKED original_chars=(\d+) head=\d+ tail=\d+ ` +
	`id=(obs_[A-Za-z0-9]{10})\]`)

// unicodeText returns a text that is hard to recover: characters of one to four bytes, and
// characters that JSON escapes. Each line has its number.
func unicodeText(lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "%d\té 🙂 \\ \"quoted\" <b>&amp;</b> \u2028 \u0001 ERROR%d\n", i, i%10)
	}
	return b.String()
}

// newTextServer starts a server whose tool "read" returns this JSON string.
func newTextServer(t *testing.T, spelled string) *remoteServer {
	s := newRemoteServer(t, "read")
	s.Replies = map[string]string{"read": `"result":{"content":[{"type":"text","text":` + spelled + `}]}`}
	return s
}

// recoveredText is the result of recover_observation.
type recoveredText struct {
	Content []struct{ Text string }
	IsError bool
	Meta    struct {
		Total   int  `json:"total_chars"`
		Matches int  `json:"matches"`
		Next    *int `json:"next_start_char"`
	} `json:"_meta"`
}

func recoverObservation(t *testing.T, c *testClient, arguments string) (r recoveredText) {
	t.Helper()
	got := c.ask(t, "tools/call", `{"name":"recover_observation","arguments":`+arguments+`}`)
	if err := json.Unmarshal(got.answer.Result, &r); err != nil || got.status != 200 || len(r.Content) == 0 {
		t.Fatalf("%s: %d %s", arguments, got.status, got.answer.Raw)
	}
	return r
}

// callMasked makes a call whose result is masked, and returns its handle.
func callMasked(t *testing.T, c *testClient, server, tool, arguments string) (handle string) {
	t.Helper()
	text := c.use(t, server, tool, arguments)
	found := handlePattern.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no handle in %.200s…", text)
	}
	return found[2]
}

func TestAggregateRecovery(t *testing.T) {
	isolate(t)
	original := unicodeText(300)
	// The same text, with every character escaped.
	escaped := new(strings.Builder)
	for _, c := range original {
		if c < 0x10000 {
			fmt.Fprintf(escaped, `\u%04x`, c)
		} else {
			fmt.Fprintf(escaped, `\u%04X\u%04X`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
		}
	}
	items := new(strings.Builder)
	for i := range 500 {
		fmt.Fprintf(items, `{"id":%d,"name":"item %d","size":12345678901234567890},`, i, i)
	}
	url := serve(t, gateway("separator __", block("mask", "recover on"),
		newTextServer(t, quote(original)).line("plain"), newTextServer(t, `"`+escaped.String()+`"`).line("spelled"),
		newTextServer(t, quote(`{"items":[`+items.String()+`{}]}`)).line("listing"),
		child("alpha"), block(child("bare"), "mask off")))
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, `{}`)
		t.Run("O23 "+era.name+" sees the tool", func(t *testing.T) {
			got := c.ask(t, "tools/list", `{}`)
			if !strings.Contains(got.answer.Raw, `"name":"recover_observation"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
			got = c.ask(t, "resources/templates/list", `{}`)
			if !strings.Contains(got.answer.Raw, `"uriTemplate":"proxy://observation/{id}"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
		})
		for _, server := range []string{"plain", "spelled"} {
			t.Run("O23 "+era.name+" recovers a masked result, "+server, func(t *testing.T) {
				handle := callMasked(t, c, server, "read", `{}`)
				if again := callMasked(t, c, server, "read", `{}`); again != handle {
					t.Errorf("%s became %s", handle, again)
				}
				var whole strings.Builder
				for start := 0; ; {
					r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":%d}`, handle, start))
					whole.WriteString(r.Content[0].Text)
					if r.IsError || r.Meta.Total != len([]rune(original)) || strings.Contains(r.Content[0].Text,
						"OBSERVATION_MASKED") {
						t.Fatalf("got %+v", r)
					}
					if r.Meta.Next == nil {
						break
					}
					start = *r.Meta.Next
				}
				same(t, whole.String(), original)
				part := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":1999,"end_char":2500}`, handle))
				same(t, part.Content[0].Text, string([]rune(original)[1999:2500]))
				found := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"pattern":"^123\\t.*ERROR3$","context_lines":0}`, handle))
				if line := strings.Split(original, "\n")[123]; found.Meta.Matches != 1 || !strings.Contains(found.Content[0].Text,
					line) {
					t.Errorf("got %+v\nwant %q", found, line)
				}
				lines := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_line":124,"end_line":125}`, handle))
				same(t, lines.Content[0].Text, strings.Join(strings.SplitAfter(original, "\n")[123:125], ""))
				got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`)
				var read struct {
					Contents []struct{ URI, Text string }
				}
				if err := json.Unmarshal(got.answer.Result, &read); err != nil || len(read.Contents) != 1 ||
					read.Contents[0].URI != "proxy://observation/"+handle {
					t.Fatalf("%v: %.300s", err, got.answer.Raw)
				}
				same(t, read.Contents[0].Text, original)
			})
		}
		t.Run("O26 "+era.name+" queries masked JSON", func(t *testing.T) {
			handle := callMasked(t, c, "listing", "read", `{}`)
			r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"query":".items[] | select(.id == 321) | .name, .size"}`,
				handle))
			if r.IsError || r.Content[0].Text != "\"item 321\"\n12345678901234567890" {
				t.Errorf("got %+v", r)
			}
			r = recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"query":"[range(1e9)] | length"}`, handle))
			if !r.IsError || !strings.HasPrefix(r.Content[0].Text, "query: ") {
				t.Errorf("got %+v", r)
			}
		})
		t.Run("O23 "+era.name+" recovers a result of a child", func(t *testing.T) {
			handle := callMasked(t, c, "alpha", "big", `{"n":10000}`)
			got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`)
			if whole := c.use(t, "bare", "big", `{"n":10000}`); !strings.Contains(got.answer.Raw, `"text":"`+whole+`"`) {
				t.Errorf("got %.300s", got.answer.Raw)
			}
		})
		t.Run("O23 "+era.name+" asks for unknown observations", func(t *testing.T) {
			unknown := "obs_" + strings.Repeat("x", 10)
			for arguments, want := range map[string]string{
				`{"id":"` + unknown + `"}`: unknown, `{}`: "id is missing", `{"id":1}`: "must be a string",
				`{"id":"x","start":1}`: "unknown argument",
			} {
				if r := recoverObservation(t, c, arguments); !r.IsError || !strings.Contains(r.Content[0].Text, want) {
					t.Errorf("%s: %+v", arguments, r)
				}
			}
			uri := "proxy://observation/" + unknown
			got := c.ask(t, "resources/read", `{"uri":"`+uri+`"}`)
			if got.answer.Error == nil || got.answer.Error.Code != -32602 || !strings.Contains(string(got.answer.Error.Data),
				uri) {
				t.Errorf("got %s", got.answer.Raw)
			}
		})
	}
}

// A recovered text is never masked again, even with short masks.
func TestAggregateRecoveryOfShortMasks(t *testing.T) {
	isolate(t)
	original := unicodeText(20)
	url := serve(t, gateway("separator __",
		block(newTextServer(t, quote(original)).line("short"), block("mask 100 10 10", "recover on")),
		block(child("long"), block("mask 4000 10 10", "recover on"))))
	c := newTestClient(t, joinedAt(url), true, `{}`)
	handle := callMasked(t, c, "short", "read", `{}`)
	var whole strings.Builder
	for start := 0; ; {
		r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":%d}`, handle, start))
		if n := len([]rune(r.Content[0].Text)); n > 100 {
			t.Errorf("got %d characters, which another mask would cut", n)
		}
		whole.WriteString(r.Content[0].Text)
		if r.Meta.Next == nil {
			break
		}
		start = *r.Meta.Next
	}
	same(t, whole.String(), original)
	t.Run("O23 originals of each server", func(t *testing.T) {
		handle := callMasked(t, c, "long", "big", `{"n":5000}`)
		r := recoverObservation(t, c, fmt.Sprintf(`{"id":%q,"start_char":4990}`, handle))
		if r.IsError || r.Content[0].Text != strings.Repeat("x", 10) {
			t.Errorf("got %+v", r)
		}
	})
}

// Without recover there is no tool, no template and no handle (A44, O23).
func TestAggregateWithoutRecovery(t *testing.T) {
	isolate(t)
	tests := []struct {
		name  string
		lines []string
	}{
		{"O23 no mask", []string{child("alpha")}},
		{"O23 a mask without recover", []string{"mask 4000 2000 2000", child("alpha")}},
		{"O23 recover off", []string{block("mask", "recover off"), child("alpha")}},
		{"O23 the mask with recover is off", []string{block("mask off", "recover on"), child("alpha")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newLegacyClient(t, serve(t, gateway(tt.lines...)), `{}`)
			if c.listsTool("recover_observation") {
				t.Error("the tool is listed")
			}
			if got := c.list("resources/templates/list", "uriTemplate"); slices.Contains(got, "proxy://observation/{id}") {
				t.Errorf("templates: %v", got)
			}
			if got := c.use("alpha::big", `{"n":10000}`); strings.Contains(got, "id=obs_") {
				t.Error("the marker has a handle")
			}
			c.expectError("tools/call", `{"name":"recover_observation","arguments":{"id":"obs_x"}}`, -32602)
			c.expectError("resources/read", `{"uri":"proxy://observation/obs_x"}`, -32602)
		})
	}
}

// The passwords of alice and bob are their names.
const basicAuthAccounts = `basic_auth {
	alice $2a$04$Mwcw1rR64pgwbiW5Tnqmaur6pR8BJ4BfcsKZCWFO7NWCKWFxsVLTq
	bob $2a$04$O1gTu59shVOJBWJWCimZkO513JyfgU.NganN/RzsohuSPY3jwsgcy
}`

func basicAuthHeader(user string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+user))
}

// A handle belongs to the client that got it (O23).
func TestAggregateRecoveryIsTheClientsOwn(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	config := site(address, basicAuthAccounts, gateway("separator __", block("mask", "recover on"), child("alpha")))
	load(t, config)
	endpoint := joinedAt("http://" + address)
	refused := func(t *testing.T, c *testClient, handle string) {
		t.Helper()
		if r := recoverObservation(t, c, `{"id":"`+handle+`"}`); !r.IsError {
			t.Errorf("got %.100s…", r.Content[0].Text)
		}
		if got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`); got.answer.Error == nil ||
			got.answer.Error.Code != -32602 {
			t.Errorf("got %.300s", got.answer.Raw)
		}
	}
	for i, era := range clientEras {
		t.Run("O23 "+era.name, func(t *testing.T) {
			alice, bob := newTestClient(t, endpoint, era.modern, `{}`, basicAuthHeader("alice")),
				newTestClient(t, endpoint, era.modern, `{}`, basicAuthHeader("bob"))
			arguments := fmt.Sprintf(`{"n":%d}`, 10000+i) // no client has a handle for it yet
			handle := callMasked(t, alice, "alpha", "big", arguments)
			refused(t, bob, handle)
			for _, c := range []*testClient{alice, newTestClient(t, endpoint, !era.modern, `{}`, basicAuthHeader("alice"))} {
				if r := recoverObservation(t, c, `{"id":"`+handle+`","start_char":2000}`); r.IsError {
					t.Errorf("got %+v", r)
				}
			}
			if handle := callMasked(t, bob, "alpha", "big", arguments); recoverObservation(t, bob, `{"id":"`+handle+
				`"}`).IsError {
				t.Error("bob cannot recover his own result")
			}
		})
	}
	t.Run("O23 after a reload", func(t *testing.T) {
		alice, bob := newTestClient(t, endpoint, false, `{}`, connectionClose, basicAuthHeader("alice")),
			newTestClient(t, endpoint, false, `{}`, connectionClose, basicAuthHeader("bob"))
		handle := callMasked(t, alice, "alpha", "big", `{"n":20001}`)
		load(t, config+site(freeAddress(t), "respond x"))
		if r := recoverObservation(t, alice, `{"id":"`+handle+`"}`); r.IsError {
			t.Errorf("got %+v", r)
		}
		refused(t, bob, handle)
	})
	t.Run("O23 after a reload that denies the tool", func(t *testing.T) {
		alice := newTestClient(t, endpoint, false, `{}`, connectionClose, basicAuthHeader("alice"))
		handle := callMasked(t, alice, "alpha", "big", `{"n":20002}`)
		denying := func(pattern string) string {
			return site(address, basicAuthAccounts, gateway("separator __", block("mask", "recover on"),
				block("client alice", "deny "+pattern), child("alpha")))
		}
		load(t, denying("alpha::big"))
		refused(t, alice, handle)
		load(t, denying("alpha::echo"))
		if r := recoverObservation(t, alice, `{"id":"`+handle+`"}`); r.IsError {
			t.Errorf("with another tool denied: %+v", r)
		}
	})
}
