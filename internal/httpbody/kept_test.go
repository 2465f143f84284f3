package httpbody

import (
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadKept(t *testing.T) {
	text := strings.Repeat("0123456789", 10_000)
	for _, test := range []struct {
		name, body string
		limit      int64
		want       string
		shared     bool
	}{
		{"the same body", text, 1 << 20, text, true},
		{"shorter", text[:50_000], 1 << 20, text[:50_000], false},
		{"longer", text + "x", 1 << 20, text + "x", false},
		{"different from the beginning on", "x" + text, 1 << 20, "x" + text, false},
		{"different at the end", text[:99_999] + "x", 1 << 20, text[:99_999] + "x", false},
		{"empty", "", 1 << 20, "", false},
		{"more than the limit", text, 99_999, text, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			raw := []byte(text)
			for _, body := range []io.Reader{strings.NewReader(test.body), iotest.OneByteReader(strings.NewReader(test.body)),
				iotest.DataErrReader(strings.NewReader(test.body))} {
				r := &http.Request{Body: io.NopCloser(body), GetBody: Keep(raw), ContentLength: -1}
				got, err := ReadKept(r, test.limit)
				if err != nil || string(got) != test.want {
					t.Fatalf("got %d bytes, %v", len(got), err)
				}
				if shared := len(got) > 0 && &got[0] == &raw[0]; shared != test.shared {
					t.Errorf("shared: %t", shared)
				}
			}
		})
	}
	broken := errors.New("broken")
	if _, err := ReadKept(&http.Request{Body: io.NopCloser(iotest.ErrReader(broken)), GetBody: Keep([]byte("x"))},
		10); err != broken {
		t.Errorf("got %v", err)
	}
}

func TestReadKeptTakesLittleMemoryForASmallBody(t *testing.T) {
	raw := []byte(strings.Repeat("x", 200))
	const times = 1_000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		r := &http.Request{Body: io.NopCloser(strings.NewReader(string(raw))), GetBody: Keep(raw)}
		if got, err := ReadKept(r, 1<<20); err != nil || len(got) != len(raw) {
			t.Fatalf("got %d bytes, %v", len(got), err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / times; each > 4<<10 {
		t.Errorf("%d bytes allocated for each", each)
	}
}
