package httpbody

import (
	"bytes"
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// A body that is written in pieces is decoded to the same text as one that is read at once, and
// fails if that fails. For gzip, the text equals that of compress/gzip.
func FuzzDecoder(f *testing.F) {
	encodings := []string{"gzip", "br", "zstd"}
	for _, text := range []string{"", "a", strings.Repeat("some text, ", 30), `{"jsonrpc":"2.0","id":1,"result":{}}`} {
		bodies := encoded(f, text)
		for i, encoding := range encodings {
			body := bodies[encoding]
			f.Add(body, uint8(i), uint8(3))
			f.Add(body[:len(body)/2], uint8(i), uint8(0))
			f.Add(append(bytes.Clone(body), "trailing"...), uint8(i), uint8(255))
			f.Add(append(bytes.Clone(body), body...), uint8(i), uint8(9))
		}
	}
	// A header that gzip refuses.
	f.Add([]byte("\x1f\x8b\x07"), uint8(0), uint8(0))
	const most = 1 << 20 // a few bytes can decode to very many
	f.Fuzz(func(t *testing.T, body []byte, which, size uint8) {
		encoding := encodings[int(which)%len(encodings)]
		r, err := NewReader(encoding, bytes.NewReader(body))
		want, wantErr := []byte(nil), err
		if err == nil {
			want, wantErr = io.ReadAll(io.LimitReader(r, most+1))
			r.Close()
		}
		if len(want) > most {
			return
		}
		var got bytes.Buffer
		d := NewDecoder(encoding, &got)
		defer d.Stop()
		for piece := range slices.Chunk(body, int(size)+1) {
			if _, err = d.Write(bytes.Clone(piece)); err != nil {
				break
			}
		}
		if err == nil {
			err = d.Close()
		}
		// Broken bodies need not fail at the same position.
		if err == nil && !bytes.Equal(got.Bytes(), want) || (err == nil) != (wantErr == nil) && len(body) > 0 ||
			!bytes.HasPrefix(got.Bytes(), want) && !bytes.HasPrefix(want, got.Bytes()) {
			t.Fatalf("%s %q by %d: %q, %v; at once %q, %v", encoding, body, int(size)+1, &got, err, want, wantErr)
		}
		if encoding != "gzip" {
			return
		}
		std, err := gzip.NewReader(bytes.NewReader(body))
		if err == nil {
			want, err = io.ReadAll(std)
		}
		if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q: %q, %v; compress/gzip has %q, %v", body, &got, wantErr, want, err)
		}
	})
}

// TypeOf agrees with package mime.
func FuzzTypeOf(f *testing.F) {
	for _, contentType := range []string{"application/json", " Application/JSON ; charset=utf-8", "application/vnd.x+json",
		"text/event-stream;x", "text/event-streams", "application/jsonx", "+json", "a/b;c=\"+json\"",
		"text/html; a=application/json"} {
		f.Add(contentType)
	}
	f.Fuzz(func(t *testing.T, contentType string) {
		got := TypeOf(contentType)
		media, _, err := mime.ParseMediaType(contentType)
		if err != nil {
			return
		}
		want := Other
		switch {
		case media == "text/event-stream":
			want = EventStream
		case media == "application/json" || strings.HasSuffix(media, "+json"):
			want = JSON
		}
		if got != want {
			t.Fatalf("%q is %d, but %q for package mime", contentType, got, media)
		}
	})
}

// A body is read up to the limit, and one byte more if it is longer, for any announced length.
func FuzzRead(f *testing.F) {
	f.Add(uint16(0), int64(-1), uint16(10), uint8(3))
	f.Add(uint16(5000), int64(1<<62), uint16(4999), uint8(0))
	f.Add(uint16(5000), int64(3), uint16(5000), uint8(255))
	f.Add(uint16(4096), int64(4096), uint16(4096), uint8(7))
	f.Fuzz(func(t *testing.T, length uint16, announced int64, limit uint16, size uint8) {
		body := bytes.Repeat([]byte("0123456789"), int(length)/10+1)[:length]
		var pieces []io.Reader
		for piece := range slices.Chunk(body, int(size)+1) {
			pieces = append(pieces, bytes.NewReader(piece))
		}
		r := &http.Request{Body: io.NopCloser(io.MultiReader(pieces...)), ContentLength: announced}
		got, err := Read(r, int64(limit))
		if want := body[:min(len(body), int(limit)+1)]; !bytes.Equal(got, want) || err != nil {
			t.Fatalf("read %d bytes of %d, limit %d, announced %d: %v", len(got), length, limit, announced, err)
		}
	})
}
