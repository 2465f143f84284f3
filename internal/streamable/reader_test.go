package streamable

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A listener records what a Reader delivers.
type listener struct {
	Reader
	delivered []string
	large     bytes.Buffer
}

type largePart struct {
	*jsonspan.Rewriter
	l *listener
}

func (p largePart) Close() error {
	err := p.Rewriter.Close()
	if err == nil {
		p.l.delivered = append(p.l.delivered, "large end")
	}
	return err
}

func newListener(contentType string) *listener {
	l := &listener{}
	l.RequestID = []byte("1")
	l.Header().Set("Content-Type", contentType)
	l.OnMessage = func(e *Event) error {
		l.delivered = append(l.delivered, fmt.Sprintf("%q %q %s", e.ID, e.Retry, e.Data))
		if e.Message.IsResponse() {
			l.NoteResponse(e.Message)
		}
		return nil
	}
	l.OnLarge = func(id string) io.WriteCloser {
		l.delivered = append(l.delivered, fmt.Sprintf("large %q", id))
		return largePart{jsonspan.CompilePaths("id").Rewrite(&l.large,
			func(int, jsonspan.Kind, []byte) []byte { return nil }), l}
	}
	return l
}

// write writes pieces of a text to the Reader, and returns what it delivered.
func (l *listener) write(pieces ...string) string {
	for _, piece := range pieces {
		scratch := []byte(piece)
		_, _ = l.Write(scratch)
		clear(scratch) // the Reader must not keep these bytes
	}
	_ = l.Close()
	return strings.Join(l.delivered, "\n")
}

const testAnswer = `{"jsonrpc":"2.0","id":1,"result":{"a":"é\u00e9"}}`

func TestReaderInAnyPieces(t *testing.T) {
	const stream = "text/event-stream"
	note := `{"jsonrpc":"2.0","method":"n"}`
	tests := []struct{ name, contentType, text, want string }{
		{"JSON", "application/json", testAnswer, `"" "" ` + testAnswer},
		{"JSON in white space", "application/json; charset=utf-8", "\r\n " + testAnswer + "\n", "\"\" \"\" \r\n " +
			testAnswer + "\n"},
		{"JSON without a Content-Type", "", testAnswer, `"" "" ` + testAnswer},
		{"JSON as text", "text/plain", testAnswer, `"" "" ` + testAnswer},
		{"JSON with a byte order mark", "application/json", "\xEF\xBB\xBF" + testAnswer, `"" "" ` + testAnswer},
		{"an event", stream, "data: " + testAnswer + "\n\n", `"" "" ` + testAnswer},
		{"no space", stream, "data:" + testAnswer + "\n\n", `"" "" ` + testAnswer},
		{"CRLF", stream, "id: 7\r\nretry: 10\r\ndata: " + testAnswer + "\r\n\r\n", `"7" "10" ` + testAnswer},
		{"CR", stream, "id: 7\rretry: 10\rdata: " + testAnswer + "\r\rdata: " + note + "\r\r", `"7" "10" ` + testAnswer +
			"\n" + `"" "" ` + note},
		{"a byte order mark", stream, "\xEF\xBB\xBFdata: " + testAnswer + "\n\n", `"" "" ` + testAnswer},
		{"comments", stream, ": hi\n\n:\n\n: a\ndata: " + testAnswer + "\n: b\n\n", `"" "" ` + testAnswer},
		{"no final blank line", stream, "data: " + note + "\n\ndata: " + testAnswer + "\n", `"" "" ` + note + "\n" +
			`"" "" ` + testAnswer},
		{"no final line end", stream, "data: " + testAnswer, `"" "" ` + testAnswer},
		{"several lines of data", stream, "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\ndata:\ndata: \"result\":{}}\n\n",
			"\"\" \"\" {\"jsonrpc\":\"2.0\",\n\"id\":1,\n\"result\":{}}"},
		{"a field between lines of data", stream, "data: {\"id\":1,\nid: 3\ndata: \"result\":{}}\n\n",
			"\"3\" \"\" {\"id\":1,\n\"result\":{}}"},
		{"a priming event", stream, "id: 1\ndata:\n\ndata: " + testAnswer + "\n\n", "\"1\" \"\" \n" + `"" "" ` + testAnswer},
		{"a priming event with a space", stream, "id: 1\ndata: \n\n", "\"1\" \"\" "},
		{"a priming event without data", stream, "id: 1\nretry: 5\n\n", "\"1\" \"5\" "},
		{"an id after the data", stream, "data: " + note + "\nid: 2\n\n", `"2" "" ` + note},
		{"an id with a NUL", stream, "id: a\x00b\ndata: " + note + "\n\n", `"" "" ` + note},
		{"an id without a space, with colons", stream, "id:a:b c\ndata: " + note + "\n\n", `"a:b c" "" ` + note},
		{"other fields", stream, "event: message\nfoo: bar\nidx: 9\ndata: " + note + "\n\n", `"" "" ` + note},
		{"an empty event", stream, "event: x\n\ndata: " + note + "\n\n", `"" "" ` + note},
		{"an id of one event", stream, "id: 1\ndata: " + note + "\n\ndata: " + note + "\n\n", `"1" "" ` + note + "\n" +
			`"" "" ` + note},
		{"events that are not messages", stream, "event: ping\ndata: {}\n\ndata: {\"error\":\"x\"}\n\n" +
			"data: {\"result\":1,\"error\":{}}\n\ndata: {\"method\":1}\n\ndata: " + note + "\n\n", `"" "" ` + note},
		{"JSON that is not a message", "application/json", `{"error":"x"}`, ""},
		{"garbage between events", stream, "data: <html>\n\ndata: [1]\n\ndata: " + note + "\n\n", `"" "" ` + note},
		{"a very long id", stream, "id: " + strings.Repeat("7", 5000) + "\ndata: " + note + "\n\n", `"" "" ` + note},
		{"a very long comment", stream, ":" + strings.Repeat("x", 5000) + "\ndata: " + note + "\nid: 4\n\n",
			`"4" "" ` + note},
		{"an empty stream", stream, "", ""},
		{"empty JSON", "application/json", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := newListener(tt.contentType).write(tt.text); got != tt.want {
				t.Errorf("in one piece: got\n%.300s\nwant\n%.300s", got, tt.want)
			}
			if got := newListener(tt.contentType).write(strings.Split(tt.text, "")...); got != tt.want {
				t.Errorf("in characters: got\n%.300s\nwant\n%.300s", got, tt.want)
			}
			for i := 1; i < len(tt.text); i++ {
				if got := newListener(tt.contentType).write(tt.text[:i], tt.text[i:]); got != tt.want {
					t.Fatalf("split at %d: got\n%.300s\nwant\n%.300s", i, got, tt.want)
				}
			}
			if len(tt.text) > 300 {
				return
			}
			for i := 1; i < len(tt.text); i++ {
				for j := i + 1; j < len(tt.text); j++ {
					if got := newListener(tt.contentType).write(tt.text[:i], tt.text[i:j], tt.text[j:]); got != tt.want {
						t.Fatalf("split at %d and %d: got\n%s\nwant\n%s", i, j, got, tt.want)
					}
				}
			}
		})
	}
}

func TestReaderWithoutMessage(t *testing.T) {
	tests := []struct {
		name, contentType, text string
		status                  int
		symbol                  string
	}{
		{"HTML", "text/html", "<html>", 200, "invalid_json"},
		{"HTML and 502", "text/html", "<html>", 502, "http_error"},
		{"truncated JSON", "application/json", `{"jsonrpc":"2.0","id":1,"res`, 200, "invalid_json"},
		{"two messages", "application/json", testAnswer + testAnswer, 200, "invalid_json"},
		{"no body", "application/json", "", 200, "invalid_response"},
		{"no body and 500", "application/json", "", 500, "http_error"},
		{"no body and 301", "", "", 301, "http_error"},
		{"a stream without messages", "text/event-stream", ": x\n\n", 200, "invalid_response"},
		{"a stream of garbage", "text/event-stream", "data: x\n\n", 200, "invalid_response"},
		{"an invalid stream", "text/event-stream", testAnswer, 200, "invalid_response"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newListener(tt.contentType)
			l.WriteHeader(tt.status)
			if got := l.write(tt.text); got != "" {
				t.Errorf("got %s", got)
			}
			if code, answered := l.Outcome(); answered || code != 0 || l.Status() != tt.status {
				t.Errorf("outcome %d, %t, status %d", code, answered, l.Status())
			}
			if failure := l.Failure("a"); failure.Data.Symbol != tt.symbol {
				t.Errorf("got %+v, want %s", failure, tt.symbol)
			}
		})
	}
}

func TestReaderOfInformationalStatus(t *testing.T) {
	l := newListener("application/json")
	l.WriteHeader(http.StatusEarlyHints)
	l.WriteHeader(http.StatusBadRequest)
	l.WriteHeader(http.StatusOK)
	l.write(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""}}`)
	if code, answered := l.Outcome(); code != -32602 || !answered || l.Status() != http.StatusBadRequest {
		t.Errorf("got %d, %t, %d", code, answered, l.Status())
	}
}

func TestReaderOfCompressedResponse(t *testing.T) {
	l := newListener("text/event-stream")
	l.Header().Set("Content-Encoding", "gzip")
	if got := l.write("data: " + testAnswer + "\n\n"); got != "" {
		t.Errorf("got %s", got)
	}
	if l.err == nil {
		t.Error("no error for a compressed body")
	}
}

func TestReaderOfLargeMessages(t *testing.T) {
	filler := strings.Repeat("x", MaxHeld)
	large := `{"jsonrpc":"2.0","id":1,"result":{"t":"` + filler + `"}}`
	severalPieces := `{"jsonrpc":"2.0","id":1,"result":{"t":["` + filler + `","` + strings.Repeat("yz", MaxHeld) + `"]}}`
	exact := strings.Replace(large, filler, filler[:MaxHeld-(len(large)-len(filler))], 1)
	note := `{"jsonrpc":"2.0","method":"n","params":{"t":"` + filler + `"}}`
	request := `{"jsonrpc":"2.0","id":1,"method":"n","params":{"t":"` + filler + `"}}`
	tests := []struct {
		name, contentType, text, delivered, large string
		code                                      int
		answered                                  bool
		err                                       error
	}{
		{"a response as JSON", "application/json", large, "large \"\"\nlarge end", large, 0, true, nil},
		{"a response in several pieces", "application/json", severalPieces, "large \"\"\nlarge end", severalPieces, 0, true,
			nil},
		{"a response in several pieces and lines", "text/event-stream", "data: {\ndata: " + severalPieces[1:] + "\n\n",
			"large \"\"\nlarge end", "{\n" + severalPieces[1:], 0, true, nil},
		{"a response as an event", "text/event-stream", "id: 5\ndata: " + large + "\n\n", "large \"5\"\nlarge end", large, 0,
			true, nil},
		{"without a final blank line", "text/event-stream", "id: 5\ndata: " + large, "large \"5\"\nlarge end", large, 0, true,
			nil},
		{"an error", "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-7,"message":"` + filler + `"}}`,
			"large \"\"\nlarge end",
			`{"jsonrpc":"2.0","id":1,"error":{"code":-7,"message":"` + filler + `"}}`, -7, true, nil},
		{"in lines", "text/event-stream", "data: " + large[:MaxHeld/2] + "\ndata: " + large[MaxHeld/2:] + "\n\n",
			"large \"\"",
			large[:MaxHeld/2] + "\n" + large[MaxHeld/2:], 0, true, errNoMessage},
		{"in lines between tokens", "text/event-stream", "data: " + large[:len(large)-2] + "\ndata: }\r\ndata: }\n\n",
			"large \"\"\nlarge end",
			large[:len(large)-2] + "\n}\n}", 0, true, nil},
		{"of exactly the held size", "application/json", exact, `"" "" ` + exact, "", 0, true, nil},
		{"a notification", "text/event-stream", "data: " + note + "\n\ndata: " + testAnswer + "\n\n", `"" "" ` + note +
			"\n\"\" \"\" " + testAnswer, "", 0, true, nil},
		{"a request", "text/event-stream", "data: " + request + "\n\n", `"" "" ` + request, "", 0, false, nil},
		{"another response", "text/event-stream", "data: " + strings.Replace(large, `"id":1`, `"id":11`, 1) +
			"\n\ndata: " + testAnswer + "\n\n", `"" "" ` + testAnswer, "", 0, true, nil},
		{"only another response", "application/json", strings.Replace(large, `"id":1`, `"id":"1"`, 1), "", "", 0, false,
			nil},
		{"garbage", "application/json", filler + filler, "", "", 0, false, errNoMessage},
		{"too much garbage", "application/json", strings.Repeat(filler, 65), "", "", 0, false, errTooLarge},
		{"too large notification", "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"method\":\"" + strings.Repeat(filler,
			65) + "\"}\n\ndata: " + testAnswer + "\n\n", "", "", 0, false, errTooLarge},
		{"truncated", "application/json", large[:len(large)-2], "large \"\"", large[:len(large)-2], 0, true, errNoMessage},
		{"a response and another message", "text/event-stream", "data: " + large + "\n\ndata: " + testAnswer + "\n\n",
			"large \"\"\nlarge end\n\"\" \"\" " + testAnswer, large, 0, true, nil},
		{"id last", "application/json", `{"jsonrpc":"2.0","result":{"t":"` + filler + `"},"id":1}`, "large \"\"\nlarge end",
			`{"jsonrpc":"2.0","result":{"t":"` + filler + `"},"id":1}`, 0, true, nil},
	}
	for _, tt := range tests {
		for _, size := range []int{1 << 30, 32 << 10, 4093} {
			if len(tt.text) > 8<<20 && size != 32<<10 {
				continue // takes too long
			}
			t.Run(tt.name+" in pieces of "+strconv.Itoa(size), func(t *testing.T) {
				l := newListener(tt.contentType)
				for text := tt.text; text != ""; {
					n := min(size, len(text))
					scratch := []byte(text[:n])
					_, _ = l.Write(scratch)
					clear(scratch)
					text = text[n:]
				}
				err := l.Close()
				if got := strings.Join(l.delivered, "\n"); got != tt.delivered {
					t.Errorf("got %.300q, want %.300q", got, tt.delivered)
				}
				if got := l.large.String(); got != tt.large {
					t.Errorf("%d bytes passed on, want %d", len(got), len(tt.large))
				}
				if code, answered := l.Outcome(); code != tt.code || answered != tt.answered || err != tt.err {
					t.Errorf("got %d, %t, %v", code, answered, err)
				}
				if err == errTooLarge && l.Failure("a").Message != jsonrpc.ResponseTooLarge("a").Message+": more than 64 MiB" {
					t.Errorf("got %+v", l.Failure("a"))
				}
			})
		}
	}
}

// FuzzReader checks that the result does not depend on how a response is split.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		testAnswer, "data: " + testAnswer +
			"\n\n", "id: 1\r\nretry: 5\rdata: {\"id\":1,\n\rdata:\"result\":{}}\r\n\r\n", "\xEF\xBB\xBFid\ndata\n:\n\n",
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\ndata: x\n\n", "event: x\n\n\n\rdata: {}",
	} {
		for _, stream := range []bool{false, true} {
			f.Add(text, stream, uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, text string, stream bool, size uint8) {
		contentType := "application/json"
		if stream {
			contentType = "text/event-stream"
		}
		whole, parts := newListener(contentType), newListener(contentType)
		want := whole.write(text)
		var pieces []string
		for rest := text; rest != ""; {
			n := min(int(size%7)+1, len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := parts.write(pieces...); got != want || parts.err != whole.err {
			t.Errorf("in pieces: %q, %v\nwhole: %q, %v", got, parts.err, want, whole.err)
		}
		for _, delivered := range whole.delivered {
			if head, _, _ := strings.Cut(delivered, "{"); strings.ContainsAny(head, "\r\n") && stream {
				t.Errorf("id with a line break: %q", delivered)
			}
		}
	})
}

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
	broken := io.MultiReader(strings.NewReader("event: message\ndata: {\"method\":\"n\"}\n\ndata: {}"),
		iotest.ErrReader(io.ErrUnexpectedEOF))
	if err := r.ReadResponse(response(broken)); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v", err)
	}
	if len(got) != 1 || got[0] != `message{"method":"n"}` {
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

// BenchmarkReader reads responses in the pieces that reverse_proxy writes.
func BenchmarkReader(b *testing.B) {
	const piece = 32 << 10
	for _, text := range []struct{ name, line string }{
		{"plain", "An observation of no consequence, with nothing to escape. "},
		{"lines", `2026-11-16 18:33:33 INFO path=\"/v1/items\" handled the request\n`},
	} {
		for _, size := range []int{1 << 10, 100 << 10, 5 << 20} {
			message := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat(text.line,
				size/len(text.line)) + `"}]}}`
			for _, media := range []struct{ name, contentType, body string }{
				{"JSON", "application/json", message},
				{"events", "text/event-stream", "event: message\ndata: " + message + "\n\n"},
			} {
				b.Run(fmt.Sprintf("%s/%s/%d", media.name, text.name, size), func(b *testing.B) {
					body := []byte(media.body)
					b.SetBytes(int64(len(body)))
					b.ReportAllocs()
					passed := 0
					for b.Loop() {
						r := Reader{RequestID: []byte("1"), OnMessage: func(e *Event) error { passed++; return nil }}
						r.OnLarge = func(string) io.WriteCloser {
							passed++
							return &discarded{jsonspan.CompilePaths("id").Rewrite(io.Discard,
								func(int, jsonspan.Kind, []byte) []byte { return nil })}
						}
						giveBack := r.Borrow()
						r.Header().Set("Content-Type", media.contentType)
						if media.name == "JSON" {
							r.Header().Set("Content-Length", strconv.Itoa(len(body)))
						}
						for rest := body; len(rest) > 0; {
							n := min(piece, len(rest))
							_, _ = r.Write(rest[:n])
							rest = rest[n:]
						}
						if err := r.Close(); err != nil {
							b.Fatal(err)
						}
						giveBack()
					}
					if passed != b.N {
						b.Fatal(passed)
					}
				})
			}
		}
	}
}

type discarded struct{ *jsonspan.Rewriter }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
