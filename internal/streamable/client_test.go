package streamable

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestSessionHeaders(t *testing.T) {
	inherited := func() http.Header {
		return http.Header{"Mcp-Session-Id": {"another"}, "Mcp-Protocol-Version": {"2024-11-05"}, "Mcp-Method": {"x"},
			"Mcp-Param-A":     {"x"},
			"Accept-Encoding": {"gzip"}, "Last-Event-Id": {"7"}, "Upgrade": {"h2c"}, "X-Kept": {"x"}}
	}
	tests := []struct {
		name    string
		session Session
		want    map[string]string
	}{
		{"before initialize", Session{}, map[string]string{"Mcp-Session-Id": "", "Mcp-Protocol-Version": "", "Mcp-Method": "",
			"Mcp-Param-A": ""}},
		{"a legacy session", Session{Version: "2025-11-25", ID: "s"}, map[string]string{"Mcp-Session-Id": "s",
			"Mcp-Protocol-Version": "2025-11-25", "Mcp-Method": ""}},
		{"the modern era", Session{Era: mcp.Modern, Version: mcp.Stateless}, map[string]string{"Mcp-Session-Id": "",
			"Mcp-Protocol-Version": mcp.Stateless, "Mcp-Method": "x", "Mcp-Param-A": "x"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			header := inherited()
			tt.session.SetHeaders(header)
			tt.want["Accept"], tt.want["X-Kept"] = "application/json, text/event-stream", "x"
			for _, name := range []string{"Accept-Encoding", "Last-Event-Id", "Upgrade"} {
				tt.want[name] = ""
			}
			for name, want := range tt.want {
				if got := header.Get(name); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
		})
	}
	for _, after := range []string{"", "e7"} {
		header := inherited()
		Session{ID: "s"}.SetGETHeaders(header, after)
		if header.Get("Accept") != "text/event-stream" || header.Get("Mcp-Session-Id") != "s" ||
			header.Get("Last-Event-ID") != after {
			t.Errorf("GET after %q has %v", after, header)
		}
	}
}

// response returns an event stream.
func response(body io.Reader) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(body)}
}

func TestPositionFollowsAStream(t *testing.T) {
	const message = "data: {\"method\":\"n\"}\n\n"
	tests := []struct {
		name, stream, want string
		retry              time.Duration
	}{
		{"the last id of an event is used", "\uFEFFid: 1\nid: 2\nretry: 10\n" + message, "2", 10 * time.Millisecond},
		{"an event without an id keeps the last one", "id: 1\n\n" + message, "1", 0},
		{"an id without data is used", "id: 1\n" + message + "id: 2\ndata:\n\n", "2", 0},
		{"an id of another event is used", "id: 1\n" + message + "id: 2\nevent: other\ndata: x\n\n", "2", 0},
		{"an empty id removes the last one", "id: 1\n" + message + "id\n\n", "", 0},
		{"an id with control characters is ignored", "id: 1\n" + message + "id: \x00\n" + message, "1", 0},
		{"an id that is too long is ignored", "id: 1\n" + message + "id: " + strings.Repeat("x", 8<<10) + "\n" + message,
			"1", 0},
		{"a truncated event is ignored", "id: 1\n" + message + "id: 2\ndata: {", "1", 0},
		{"a message without its final line is used", "id: 1\n" + message + "id: 2\ndata: {\"method\":\"n\"}", "2", 0},
		{"a retry that is not a number is ignored", "id: 1\nretry: 10\n\nretry: soon\n\n", "1", 10 * time.Millisecond},
		{"a long retry is shortened", "id: 1\nretry: 2000000000\n\n", "1", maxPause},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			at := Position{Attempts: 3}
			r := Reader{Position: &at, OnMessage: func(*Event) error { return nil }}
			if err := r.ReadResponse(response(iotest.OneByteReader(strings.NewReader(tt.stream)))); err != nil {
				t.Fatal(err)
			}
			if at.ID != tt.want || at.retry != tt.retry || at.Attempts != 0 {
				t.Errorf("got %+v, want id %q, retry %s, no attempts", at, tt.want, tt.retry)
			}
		})
	}
}

// Only new events reset the number of attempts.
func TestPositionCountsAttempts(t *testing.T) {
	for stream, want := range map[string]int{
		"":                      3,
		":\n\n":                 3,
		"data:\n\n":             3,
		"retry: 10\n\n":         3,
		"id: 7\ndata:\n\n":      3,
		"id: 7\ndata: {}\n\n":   3,
		"id: 8\ndata:\n\n":      0,
		"data: {\"id\":1}\n\n":  0,
		"id: 8\ndata: {\"id\":": 3,
	} {
		at := Position{ID: "7", Attempts: 3}
		r := Reader{Position: &at, OnMessage: func(*Event) error { return nil }}
		if err := r.ReadResponse(response(strings.NewReader(stream))); err != nil || at.Attempts != want {
			t.Errorf("%q: got %d attempts, want %d: %v", stream, at.Attempts, want, err)
		}
	}
}

// A Reader continues with another response and drops the unfinished event of the last one.
func TestResume(t *testing.T) {
	var got []string
	at := new(Position)
	r := Reader{Position: at, OnMessage: func(e *Event) error { got = append(got, e.ID+string(e.Data)); return nil }}
	broken := io.MultiReader(strings.NewReader("id: 1\ndata: {\"method\":\"a\"}\n\nid: 2\ndata: {\"met"),
		iotest.ErrReader(io.ErrUnexpectedEOF))
	if err := r.ReadResponse(response(broken)); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v", err)
	}
	r.ServerRequestOpened()
	for _, refused := range []*http.Response{
		{StatusCode: http.StatusNotFound, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(`{"error":{"code":1},"id":null}`))},
		{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"result":{},"id":1}`))},
	} {
		r.Resume()
		if err := r.ReadResponse(refused); err != nil || len(got) != 1 || r.SessionLost() {
			t.Errorf("%d: got %q: %v", refused.StatusCode, got, err)
		}
	}
	r.Resume()
	if err := r.ReadResponse(response(strings.NewReader("\uFEFFid: 2\ndata: {\"method\":\"b\"}\n\n"))); err != nil {
		t.Error(err)
	}
	if len(got) != 2 || got[1] != `2{"method":"b"}` || at.ID != "2" || !r.HasOpenServerRequests() {
		t.Errorf("got %q up to %q", got, at.ID)
	}
}

func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at Position
		for _, want := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second} {
			began := time.Now()
			waited := at.Wait(t.Context())
			if took := time.Since(began); !waited || took < want/2 || took > want {
				t.Errorf("waited for %s, want %s to %s", took, want/2, want)
			}
		}
		at.Attempts = 1000
		if pause := at.pause(); pause < maxPause/2 || pause > maxPause {
			t.Errorf("pauses grow to %s, want %s to %s", pause, maxPause/2, maxPause)
		}
		at = Position{retry: 7 * time.Second}
		if at.pause() != at.retry {
			t.Errorf("the server wants %s, got %s", at.retry, at.pause())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if at.Wait(ctx) {
			t.Error("waited although the context was done")
		}
	})
}

func TestReadResponse(t *testing.T) {
	var got []string
	r := Reader{OnMessage: func(e *Event) error { got = append(got, e.Type+string(e.Data)); return nil }}
	broken := io.MultiReader(strings.NewReader("event: message\ndata: {}\n\ndata: {}"),
		iotest.ErrReader(io.ErrUnexpectedEOF))
	if err := r.ReadResponse(response(broken)); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v", err)
	}
	if len(got) != 1 || got[0] != "message{}" {
		t.Errorf("got %q", got)
	}
	if r.Fault("a") != nil {
		t.Error("an aborted response counts as invalid content")
	}
	r = Reader{OnHeader: func(status int) bool { return status != http.StatusOK }}
	if err := r.ReadResponse(response(iotest.ErrReader(io.ErrUnexpectedEOF))); err != nil {
		t.Errorf("a body was read without need: %v", err)
	}
}
