package httpbody

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIsUTF8(t *testing.T) {
	for contentType, want := range map[string]bool{
		"": true, "application/json": true, "application/json;": true, "application/json; charset=utf-8": true,
		`application/json;CHARSET="UTF-8"`: true, "text/plain;charset=utf8": true,
		"application/json; charset=us-ascii": true, "nonsense": true, ";;": true,
		"application/json; charset=utf-7": false, `application/json;CHARSET="Utf-7"`: false,
		"application/json; charset=utf-16le": false, "text/html; charset=iso-8859-1": false,
		"application/json; charset*=utf-8''utf-7": false,
		// Package mime refuses these, but other readers may not.
		"application/json; charset=utf-7; x": false, "application/json; charset=utf-8; charset=utf-7": false,
		"application/json, x; charset=utf-7": false, ";charset=utf-7": false,
	} {
		if got := IsUTF8(contentType); got != want {
			t.Errorf("%q: got %t", contentType, got)
		}
	}
}

func TestTypeOf(t *testing.T) {
	for contentType, want := range map[string]MediaType{
		"application/json":                  JSON,
		" Application/JSON ; charset=utf-8": JSON,
		"application/vnd.x+json":            JSON,
		"text/event-stream":                 EventStream,
		"text/event-stream;charset=utf-8":   EventStream,
		"application/jsonl":                 Other,
		"text/plain":                        Other,
		"":                                  Other,
	} {
		if got := TypeOf(contentType); got != want {
			t.Errorf("%q is %d, want %d", contentType, got, want)
		}
	}
}

func TestEncoding(t *testing.T) {
	for _, test := range []struct {
		values []string
		want   string
	}{{nil, ""}, {[]string{"identity"}, ""}, {[]string{"Identity"}, ""}, {[]string{"gzip"}, "gzip"}, {[]string{"gzip",
		"br"}, "gzip,br"}} {
		if got := Encoding(http.Header{"Content-Encoding": test.values}); got != test.want {
			t.Errorf("%q is %q, want %q", test.values, got, test.want)
		}
	}
}

func TestDropDescription(t *testing.T) {
	header := http.Header{}
	for _, name := range []string{"Content-Length", "Content-Encoding", "ETag", "Content-MD5", "Digest", "Content-Digest",
		"Repr-Digest", "Content-Type"} {
		header.Set(name, "x")
	}
	if DropDescription(header); len(header) != 1 || header.Get("Content-Type") == "" {
		t.Errorf("remaining headers %v", header)
	}
	DropDescription(nil)
}

// encoded returns a text in all encodings.
func encoded(t testing.TB, text string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for name, open := range map[string]func(io.Writer) io.WriteCloser{
		"gzip":   func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"X-GZip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"br":     func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) },
		"zstd": func(w io.Writer) io.WriteCloser {
			zw, err := zstd.NewWriter(w)
			if err != nil {
				t.Fatal(err)
			}
			return zw
		},
	} {
		var b bytes.Buffer
		w := open(&b)
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		out[name] = b.Bytes()
	}
	return out
}

// Reading and writing decode the same, in pieces of any size.
func TestDecoding(t *testing.T) {
	text := strings.Repeat("some text, ", 10_000)
	for encoding, body := range encoded(t, text) {
		r, err := NewReader(encoding, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); string(got) != text || err != nil {
			t.Errorf("%s: read %d bytes, %v", encoding, len(got), err)
		}
		r.Close()
		for _, size := range []int{1, 7, len(body)} {
			var got bytes.Buffer
			d := NewDecoder(encoding, &got)
			for rest := body; len(rest) > 0; {
				n := min(size, len(rest))
				if _, err := d.Write(rest[:n]); err != nil {
					t.Fatalf("%s by %d: %v", encoding, size, err)
				}
				rest = rest[n:]
			}
			if err := d.Close(); got.String() != text || err != nil {
				t.Errorf("%s by %d: wrote %d bytes, %v", encoding, size, got.Len(), err)
			}
		}
	}
}

// A body that is truncated, broken or stopped leaves no goroutine running; goleak checks that.
func TestDecodingThatEndsEarly(t *testing.T) {
	for encoding, body := range encoded(t, strings.Repeat("some text, ", 10_000)) {
		d := NewDecoder(encoding, io.Discard)
		_, _ = d.Write(body[:len(body)/2])
		if err := d.Close(); err == nil {
			t.Errorf("%s: a truncated body was accepted", encoding)
		}

		d = NewDecoder(encoding, io.Discard)
		_, _ = d.Write(body[:len(body)/2])
		d.Stop()

		d = NewDecoder(encoding, io.Discard)
		if err := d.Close(); err != nil {
			t.Errorf("%s: an empty body: %v", encoding, err)
		}

		d = NewDecoder(encoding, io.Discard)
		_, err := d.Write([]byte("this is not encoded"))
		if err = errors.Join(err, d.Close()); err == nil {
			t.Errorf("%s: plain text was decoded", encoding)
		}
	}
	if d := NewDecoder("rot13", io.Discard); d != nil {
		t.Error("an unknown encoding has a decoder")
	}
	if r, err := NewReader("rot13", strings.NewReader("")); r != nil || err != nil {
		t.Errorf("an unknown encoding has a reader: %v, %v", r, err)
	}
}

func TestPost(t *testing.T) {
	r, _ := http.NewRequest(http.MethodGet, "http://localhost", nil)
	Post(r, []byte(`{"a":1}`))
	again, err := r.GetBody()
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []io.Reader{r.Body, again} {
		if text, err := io.ReadAll(body); err != nil || string(text) != `{"a":1}` {
			t.Errorf("got %q, %v", text, err)
		}
	}
	if r.Method != http.MethodPost || r.ContentLength != 7 || r.Header.Get("Content-Length") != "7" ||
		r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %s, %d, %v", r.Method, r.ContentLength, r.Header)
	}
	r.Header.Set("Content-Encoding", "gzip")
	Empty(r)
	if text, err := io.ReadAll(r.Body); err != nil || len(text) > 0 || r.ContentLength != 0 || len(r.Header) > 0 ||
		r.GetBody != nil {
		t.Errorf("got %q, %v, %d, %v", text, err, r.ContentLength, r.Header)
	}
}
