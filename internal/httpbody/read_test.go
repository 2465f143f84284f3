package httpbody

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name          string
		size          int
		length, limit int64
		want          int
	}{
		{"the announced length", 1000, 1000, 2000, 1000},
		{"no announced length", 10_000, -1, 20_000, 10_000},
		{"as long as the limit", 2000, -1, 2000, 2000},
		{"a byte longer than the limit", 2001, -1, 2000, 2001},
		{"much longer than the limit", 9999, -1, 2000, 2001},
		{"longer than is allocated at once", 3 << 20, 3 << 20, 4 << 20, 3 << 20},
		{"empty", 0, 0, 2000, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Repeat("x", tt.size)
			for _, body := range []io.Reader{strings.NewReader(text), iotest.DataErrReader(strings.NewReader(text)),
				iotest.HalfReader(strings.NewReader(text))} {
				got, err := Read(&http.Request{Body: io.NopCloser(body), ContentLength: tt.length}, tt.limit)
				if err != nil || string(got) != text[:tt.want] {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
		})
	}
	if got, err := Read(&http.Request{Body: io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF)), ContentLength: 5},
		10); err != io.ErrUnexpectedEOF || len(got) != 0 {
		t.Errorf("a body that fails: %q, %v", got, err)
	}
}

// A client that announces much and sends little must not use up memory.
func TestReadDoesNotTrustTheAnnouncedLength(t *testing.T) {
	body := io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF))
	got, err := Read(&http.Request{Body: io.NopCloser(body), ContentLength: 1 << 30}, 1<<31)
	if string(got) != "{" || err != io.ErrUnexpectedEOF || cap(got) > 2<<20 {
		t.Errorf("read %q in %d bytes, %v", got, cap(got), err)
	}
}
