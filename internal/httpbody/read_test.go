package httpbody

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
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

// A meter counts the memory that Hold takes, up to a limit.
type meter struct{ held, most, limit int64 }

func (m *meter) take(bytes int64) bool {
	if m.held+bytes > m.limit {
		return false
	}
	m.held += bytes
	m.most = max(m.most, m.held)
	return true
}

func TestHold(t *testing.T) {
	for _, tt := range []struct {
		name          string
		size          int
		length, limit int64
		want          int
		room          int64 // maximum
	}{
		{"the announced length", 1000, 1000, 2000, 1000, 1001},
		{"no announced length", 10_000, -1, 20_000, 10_000, 20_001},
		{"as long as the limit", 2000, -1, 2000, 2000, 2001},
		{"much longer than the limit", 9999, -1, 2000, 2001, 2001},
		{"shorter than announced", 1000, 1 << 30, 1 << 31, 1000, 1<<20 + 1<<18},
		{"large", 3_000_000, 3_000_000, 1 << 31, 3_000_000, 3_000_000 * 5 / 4},
		{"large and as long as the limit", 3_000_000, 3_000_000, 3_000_000, 3_000_000, 3_000_000 * 5 / 4},
		{"large and longer than the limit", 3_000_000, 3_000_000, 2_000_000, 2_000_001, 2_000_000 * 5 / 4},
		{"large and not announced", 3_000_000, -1, 1 << 31, 3_000_000, 6_000_000 * 5 / 4},
		{"empty", 0, 0, 2000, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Repeat("x", tt.size)
			for _, body := range []io.Reader{strings.NewReader(text), iotest.DataErrReader(strings.NewReader(text)),
				iotest.HalfReader(strings.NewReader(text))} {
				m := meter{limit: 1 << 40}
				held, err := Hold(body, tt.length, tt.limit, 0, m.take)
				if err != nil || string(held.Bytes()) != text[:tt.want] {
					t.Errorf("%d bytes, %v", len(held.Bytes()), err)
				}
				if m.held != int64(cap(held.Bytes())) || m.held > tt.room {
					t.Errorf("%d bytes are counted, the capacity is %d", m.held, cap(held.Bytes()))
				}
				held.Release()
			}
		})
	}
	broken := errors.New("broken")
	if held, err := Hold(io.MultiReader(strings.NewReader("{"), iotest.ErrReader(broken)), 5, 10, 0,
		(&meter{limit: 100}).take); err != broken || string(held.Bytes()) != "{" {
		t.Errorf("a body that fails: %q, %v", held.Bytes(), err)
	}
}

// If there is no memory for a body, the part that was read is kept.
func TestHoldWithoutRoom(t *testing.T) {
	text := strings.Repeat("x", 3_000_000)
	for _, limit := range []int64{0, 100_000, 200_000, 1_000_000, 3_100_000} {
		for _, length := range []int64{-1, int64(len(text))} {
			m := meter{limit: limit}
			body := strings.NewReader(text)
			held, err := Hold(body, length, 1<<30, 0, m.take)
			rest, _ := io.ReadAll(body)
			if !errors.Is(err, ErrNoRoom) || len(held.Bytes())+len(rest) != len(text) || m.held != int64(cap(held.Bytes())) {
				t.Errorf("limit %d: %d bytes and %d left, %v; %d are counted, the capacity is %d",
					limit, len(held.Bytes()), len(rest), err,
					m.held, cap(held.Bytes()))
			}
		}
	}
}

// A body does not contain bytes of an earlier one, and a reader of a released body gets no bytes of
// another one.
func TestHeldIsReleased(t *testing.T) {
	m := meter{limit: 1 << 40}
	var readers sync.WaitGroup
	for i := range 50 {
		text := bytes.Repeat([]byte{byte('a' + i%26)}, 200_000)
		held, err := Hold(bytes.NewReader(text), int64(len(text)), 1<<20, 0, m.take)
		if err != nil || !bytes.Equal(held.Bytes(), text) {
			t.Fatalf("%d bytes, %v", len(held.Bytes()), err)
		}
		r := held.Reader(bytes.NewReader(held.Bytes()))
		begun := make(chan struct{})
		readers.Go(func() {
			var got []byte
			buf := make([]byte, 512)
			for {
				n, err := r.Read(buf)
				if len(got) == 0 {
					close(begun)
				}
				got = append(got, buf[:n]...)
				if err == io.EOF || err == http.ErrBodyReadAfterClose {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			if len(got) == 0 || !bytes.HasPrefix(text, got) {
				t.Errorf("read %d bytes, which are not those of the body", len(got))
			}
		})
		<-begun
		held.Release()
		held.Release()
		if n, err := r.Read(make([]byte, 1)); n != 0 || err != http.ErrBodyReadAfterClose && err != io.EOF {
			t.Errorf("%d bytes after it was released, %v", n, err)
		}
	}
	readers.Wait()
}

// A buffer is at least as large as needed, and at most a quarter larger.
func TestBufferClasses(t *testing.T) {
	for n := smallBuffer - 2; n < 1<<32; n += 1 + n/1000 {
		size, pool := bufferClass(n)
		if size < n || size > n+n/4 || pool >= len(bufferPools) || (pool < 0) != (n <= smallBuffer) {
			t.Fatalf("%d bytes in %d, %d", n, size, pool)
		}
		if again, same := bufferClass(size); again != size || same != pool {
			t.Fatalf("a buffer of %d bytes has the class of %d, %d", size, again, same)
		}
	}
}

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
