package httpbody

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// A deadlineRecorder notes what deadlines are set.
type deadlineRecorder struct {
	http.ResponseWriter
	set []time.Time
}

func (w *deadlineRecorder) SetReadDeadline(at time.Time) error {
	w.set = append(w.set, at)
	return nil
}

// The deadline moves with each 16 KiB, not with each byte, and is taken away at the end.
func TestReadWithinMovesTheDeadline(t *testing.T) {
	const limit = 1 << 20
	for _, tt := range []struct {
		name   string
		body   io.Reader
		server *http.Server
		moves  int // of the deadline
		reset  bool
		want   int
	}{
		{"byte by byte", iotest.OneByteReader(strings.NewReader(strings.Repeat("x", 2*progress+1))), new(http.Server), 3, true, 2*progress + 1},
		{"at once", strings.NewReader("x"), nil, 1, true, 1},
		{"longer than the limit", bytes.NewReader(make([]byte, limit+9)), nil, 0, true, limit + 1},
		{"broken", io.MultiReader(strings.NewReader("x"), iotest.ErrReader(os.ErrDeadlineExceeded)), nil, 1, false, 1},
		{"with a deadline of the server's own", strings.NewReader("x"), &http.Server{ReadTimeout: time.Hour}, 0, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body := io.NopCloser(tt.body)
			r := &http.Request{Body: body, ContentLength: -1}
			if tt.server != nil {
				r = r.WithContext(context.WithValue(t.Context(), http.ServerContextKey, tt.server))
			}
			w := &deadlineRecorder{ResponseWriter: httptest.NewRecorder()}
			got, err := ReadWithin(w, r, limit, time.Hour)
			if len(got) != tt.want || (err == nil) == (tt.name == "broken") || r.Body != body {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			moves, reset := w.set, false
			if n := len(w.set); n > 0 && w.set[n-1].IsZero() {
				moves, reset = w.set[:n-1], true
			}
			if reset != tt.reset || tt.moves > 0 && len(moves) != tt.moves || tt.moves == 0 && tt.server != nil && len(moves) > 0 {
				t.Errorf("deadlines %v", w.set)
			}
			for i, at := range moves {
				if at.IsZero() || i > 0 && at.Before(moves[i-1]) {
					t.Errorf("deadlines %v", w.set)
				}
			}
		})
	}
}

// A client that stops sending is given up; one that does not keeps its connection, in
// each version of HTTP.
func TestReadWithinOnTheWire(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			read := make(chan error, 1)
			within := time.Hour
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Proto != proto {
					t.Errorf("%s", r.Proto)
				}
				_, err := ReadWithin(w, r, 1<<20, within)
				read <- err
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			defer server.Close()
			client := server.Client()
			if proto == "HTTP/1.1" {
				client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
				client.Transport.(*http.Transport).TLSClientConfig.NextProtos = []string{"http/1.1"}
			}
			for range 3 { // over one connection
				resp, err := client.Post(server.URL, "application/json", strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if err := <-read; err != nil {
					t.Errorf("whole body: %v", err)
				}
			}
			within = time.Millisecond
			body, rest := io.Pipe()
			defer rest.Close()
			go func() { _, _ = rest.Write([]byte("{")) }() // and no more
			go func() {
				if resp, err := client.Post(server.URL, "application/json", body); err == nil {
					resp.Body.Close()
				}
			}()
			if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("stalled body: %v", err)
			}
		})
	}
}
