package httpbody

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// A slowReader takes some time for each read.
type slowReader struct {
	io.Reader
	each time.Duration
}

func (r slowReader) Read(p []byte) (int, error) {
	time.Sleep(r.each)
	return r.Reader.Read(p[:min(len(p), progress)])
}

// A client may be slow, but must make progress.
func TestReadWithin(t *testing.T) {
	const size = 4 * progress
	text := strings.Repeat("x", size)
	for _, tt := range []struct {
		name string
		body io.Reader
		want int // bytes read
		late bool
	}{
		{"at once", strings.NewReader(text), size, false},
		{"slowly, in parts of 16 KiB", slowReader{strings.NewReader(text), 10 * time.Second}, size, false},
		{"byte by byte, fast enough", slowReader{iotest.OneByteReader(strings.NewReader(text)), time.Millisecond}, size,
			false},
		{"byte by byte, too slowly", slowReader{iotest.OneByteReader(strings.NewReader(text)), 20 * time.Second}, 2, true},
		{"the first byte too late", slowReader{iotest.OneByteReader(strings.NewReader(text)), time.Minute}, 1, true},
		{"the end of the body late",
			io.MultiReader(strings.NewReader("x"), slowReader{strings.NewReader(""), time.Minute}), 1,
			false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := io.NopCloser(tt.body)
				r := &http.Request{Body: body, ContentLength: size}
				got, err := ReadWithin(r, size, 30*time.Second)
				if len(got) != tt.want || errors.Is(err, os.ErrDeadlineExceeded) != tt.late || err != nil && !tt.late ||
					r.Body != body {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			})
		})
	}
	if got, err := ReadWithin(new(http.Request), size, time.Second); got != nil || err != nil {
		t.Errorf("without a body: %q, %v", got, err)
	}
}
