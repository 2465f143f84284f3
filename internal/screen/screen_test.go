package screen

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func same(message []byte) ([]byte, error) { return message, nil }

// shout replaces x in messages, drops messages with a 0, and fails for messages with a 9.
func shout(message []byte) ([]byte, error) {
	switch {
	case bytes.Contains(message, []byte("9")):
		return nil, errShout
	case bytes.Contains(message, []byte("0")):
		return nil, nil
	}
	return bytes.ReplaceAll(message, []byte("x"), []byte("LOUD")), nil
}

var errShout = errors.New("shouted too much")

// A recorder records statuses and flushes, in order.
type recorder struct {
	*httptest.ResponseRecorder
	statuses []int
	flushes  []int // after how many bytes
}

func record(contentType string) *recorder {
	r := &recorder{ResponseRecorder: httptest.NewRecorder()}
	if contentType != "" {
		r.Header().Set("Content-Type", contentType)
	}
	return r
}

func (r *recorder) WriteHeader(status int) {
	r.statuses = append(r.statuses, status)
	r.ResponseRecorder.WriteHeader(status)
}

func (r *recorder) FlushError() error {
	r.flushes = append(r.flushes, r.Body.Len())
	return nil
}

// ReadFrom must not be called: io.Copy would bypass the Writer.
func (r *recorder) ReadFrom(io.Reader) (int64, error) { panic("the Writer was bypassed") }

// write writes pieces to a Writer over r, and closes it.
func write(r *recorder, edit func([]byte) ([]byte, error), pieces ...string) error {
	w := NewWriter(r, 1<<20, edit)
	for _, piece := range pieces {
		b := []byte(piece)
		n, err := w.Write(b)
		if err != nil {
			return errors.Join(err, w.Close())
		}
		if n != len(b) {
			return io.ErrShortWrite
		}
		clear(b) // the Writer must not keep the slice
	}
	return w.Close()
}

func TestA56Events(t *testing.T) {
	for _, test := range []struct{ name, stream, want string }{
		{"an event", "data: {\"a\":\"x\"}\n\n", "data: {\"a\":\"LOUD\"}\n\n"},
		{"an event that is unchanged", "event:message\ndata:{}\n\n", "event:message\ndata:{}\n\n"},
		{"several events", "data: [x]\n\ndata: [1]\n\ndata: [x]\n\n", "data: [LOUD]\n\ndata: [1]\n\ndata: [LOUD]\n\n"},
		{"no space after the colon", "data:{x}\n\n", "data:{LOUD}\n\n"},
		{"other fields around it", "event: message\nid: x\ndata: {x}\nretry: 5\n\n",
			"event: message\nid: x\ndata: {LOUD}\nretry: 5\n\n"},
		{"CRLF", "id: 1\r\ndata: {x}\r\n\r\ndata: {x}\r\n\r\n", "id: 1\r\ndata: {LOUD}\r\n\r\ndata: {LOUD}\r\n\r\n"},
		{"CR", "id: 1\rdata: {x}\r\rdata: {x}\r\r", "id: 1\rdata: {LOUD}\r\rdata: {LOUD}\r\r"},
		{"several lines", "data: {\ndata: x\ndata: }\nid: 1\n\n", "data: {\ndata: LOUD\ndata: }\nid: 1\n\n"},
		{"several unchanged lines", "data:{\r\nid: 1\r\ndata:  1}\r\n\r\n", "data:{\r\nid: 1\r\ndata:  1}\r\n\r\n"},
		{"several lines with other fields between", "data: {\r\nid: 1\r\ndata: x}\r\n\r\n",
			"data: {\r\ndata: LOUD}\r\nid: 1\r\n\r\n"},
		{"an empty line of data", "data:\ndata: {x}\n\n", "data:\ndata: {LOUD}\n\n"},
		{"lines with different ends, of which two would become one", "data: {\rdata: x}\n\ndata: {x}\n\n",
			"data: {\rdata: LOUD}\n\ndata: {LOUD}\n\n"},
		{"lines with different ends around data", "data: {\nid: 1\rdata: x}\n\ndata: {x}\n\n",
			"data: {\ndata: LOUD}\nid: 1\n\ndata: {LOUD}\n\n"},
		{"comments", ": x\n\n:\ndata: {x}\n: x\n\n", ": x\n\n:\ndata: {LOUD}\n: x\n\n"},
		{"events without data", "id: 0\n\nretry: 9\n\nid: 7\ndata:\n\n", "id: 0\n\nretry: 9\n\nid: 7\ndata:\n\n"},
		{"the endpoint of the older transport", "event: endpoint\ndata: /messages?sessionId=1\n\n",
			"event: endpoint\ndata: /messages?sessionId=1\n\n"},
		{"data that is not a message", "data: x\n\ndata: \"x\"\n\n", "data: LOUD\n\ndata: \"LOUD\"\n\n"},
		{"truncated data", "data: {\"x\n\n", "data: {\"LOUD\n\n"},
		{"a dropped event", "data: [x]\n\nid: 4\ndata: [0]\n\ndata: [1]\n\n", "data: [LOUD]\n\ndata: [1]\n\n"},
		{"a dropped event with CRLF",
			"data: [x]\r\n\r\nid: 4\r\ndata: [0]\r\n\r\ndata: [1]\r\n\r\n", "data: [LOUD]\r\n\r\ndata: [1]\r\n\r\n"},
		{"a byte order mark", "\uFEFFdata: {x}\n\n", "\uFEFFdata: {LOUD}\n\n"},
		{"an incomplete byte order mark", "\xef\xbbdata: {x}\n\n", "\xef\xbbdata: {LOUD}\n\n"},
		{"a byte order mark elsewhere", "\n\uFEFFdata: {x}\n\n", "\n\uFEFFdata: {x}\n\n"},
		{"an event without an end", "data: [1]\n\nid: 1\ndata: {x}\n", "data: [1]\n\nid: 1\ndata: {LOUD}\n"},
		{"a line without an end", "data: [1]\n\ndata: {x}", "data: [1]\n\ndata: {LOUD}"},
		{"several lines without an end", "data: {\ndata: x}", "data: {\ndata: LOUD}\n"},
		{"an incomplete field", "data: [1]\n\nda", "data: [1]\n\nda"},
		{"an empty stream", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i := range len(test.stream) + 1 {
				for j := i; j <= len(test.stream); j++ {
					r := record("text/event-stream")
					err := write(r, shout, test.stream[:i], test.stream[i:j], test.stream[j:])
					if got := r.Body.String(); got != test.want || err != nil {
						t.Fatalf("cut at %d and %d: %q, %v", i, j, got, err)
					}
				}
			}
			r := record("Text/Event-Stream; charset=utf-8")
			if err := write(r, shout, strings.Split(test.stream, "")...); r.Body.String() != test.want || err != nil {
				t.Errorf("byte by byte: %q, %v", r.Body, err)
			}
		})
	}
}

// Lines that are not data are edited by Line, which does not get data.
func TestA56Lines(t *testing.T) {
	for stream, want := range map[string]string{
		": x\n\n": ": LOUD\n\n", ": x\r\n:\r\n": ": LOUD\r\n:\r\n",
		"id: x\nevent: x\ndata: [x]\nx\n\n": "id: LOUD\nevent: LOUD\ndata: [LOUD]\nLOUD\n\n",
		"id: x\rdata: [1]\r\r":              "id: LOUD\rdata: [1]\r\r",
		"id: x\n\ndata: [1]\nid: x":         "id: LOUD\n\ndata: [1]\nid: LOUD",
		"data: {\nid: x\ndata: x}\n\n":      "data: {\ndata: LOUD}\nid: LOUD\n\n",
		"datax: x\n\n":                      "dataLOUD: LOUD\n\n",
	} {
		for i := range len(stream) + 1 {
			r := record("text/event-stream")
			w := NewWriter(r, 1<<20, shout)
			w.Line = func(line []byte) []byte { return bytes.ReplaceAll(line, []byte("x"), []byte("LOUD")) }
			_, err := w.Write([]byte(stream[:i]))
			_, errRest := w.Write([]byte(stream[i:]))
			if err := errors.Join(err, errRest, w.Close()); r.Body.String() != want || err != nil {
				t.Fatalf("%q cut at %d: %q, %v", stream, i, r.Body, err)
			}
		}
	}
}

// If edit adds line breaks to a message, it becomes several lines of data.
func TestA56DataWithNewLineBreaks(t *testing.T) {
	for edited, want := range map[string]string{
		"{\n1\r\n2\r3}": "id: 1\r\ndata: {\r\ndata: 1\r\ndata: 2\r\ndata: 3}\r\n\r\n",
		"{}\n":          "id: 1\r\ndata: {}\r\ndata: \r\n\r\n",
		" {}":           "id: 1\r\ndata:  {}\r\n\r\n",
	} {
		r := record("text/event-stream")
		err := write(r, func([]byte) ([]byte, error) { return []byte(edited), nil }, "id: 1\r\ndata:{}\r\n\r\n")
		if r.Body.String() != want || err != nil {
			t.Errorf("%q: %q, %v", edited, r.Body, err)
		}
	}
}

// Complete events are passed on when the handlers flush, and comments do not wait for an event.
func TestA56EventsAreFlushedAsBefore(t *testing.T) {
	r := record("text/event-stream")
	w := NewWriter(r, 1000, same)
	flush := func(after string) {
		t.Helper()
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Fatal(err)
		}
		if n := len(after); !slices.Contains(r.flushes, n) || r.Body.String() != after {
			t.Errorf("flushed after %d, have %q, want %q", r.flushes, r.Body, after)
		}
	}
	w.WriteHeader(http.StatusOK)
	if len(r.statuses) != 0 {
		t.Error("the status was not held")
	}
	flush("")
	if !slices.Equal(r.statuses, []int{200}) {
		t.Errorf("statuses %d", r.statuses)
	}
	for _, step := range [][2]string{
		{": ping\n", ": ping\n"},
		{"data: [", ": ping\n"},
		{"1]\n", ": ping\n"},
		{"\n", ": ping\ndata: [1]\n\n"},
		{": ping\r", ": ping\ndata: [1]\n\n: ping\r"},
		{"\n", ": ping\ndata: [1]\n\n: ping\r\n"},
		{"id: 1\n: ping\n", ": ping\ndata: [1]\n\n: ping\r\n"},
	} {
		if _, err := io.WriteString(w, step[0]); err != nil {
			t.Fatal(err)
		}
		flush(step[1])
	}
}

func TestA56Bodies(t *testing.T) {
	for _, test := range []struct{ name, media, body, want, length string }{
		{"JSON", "application/json", `{"a":"x"}`, `{"a":"LOUD"}`, "12"},
		{"JSON that is unchanged", "application/json", ` {"a":1} `, ` {"a":1} `, "9"},
		{"another JSON type", "application/vnd.x+json", `[x]`, `[LOUD]`, "6"},
		{"JSON with lines", "application/json", "{\n\"x\"\n}\n", "{\n\"LOUD\"\n}\n", "11"},
		{"text", "text/plain", `{x}`, `{LOUD}`, "6"},
		{"text that is not a message", "text/plain", `no x`, `no LOUD`, "7"},
		{"a body without a type", "", `{x}`, `{LOUD}`, "6"},
		{"a dropped message", "application/json", `[0]`, ``, "0"},
		{"an empty body", "application/json", ``, ``, "0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i := range len(test.body) + 1 {
				r := record(test.media)
				r.Header().Set("Content-Length", strconv.Itoa(len(test.body)))
				r.Header().Set("ETag", `"1"`)
				w := NewWriter(r, int64(len(test.body)), shout)
				w.WriteHeader(http.StatusNotFound)
				for _, piece := range []string{test.body[:i], test.body[i:]} {
					if _, err := io.WriteString(w, piece); err != nil {
						t.Fatal(err)
					}
					if err := w.FlushError(); err != nil || len(r.statuses) > 0 || r.Body.Len() > 0 {
						t.Fatalf("passed on too early: %d %q, %v", r.statuses, r.Body, err)
					}
				}
				err := errors.Join(w.Close(), w.Close())
				if r.Body.String() != test.want || !slices.Equal(r.statuses, []int{404}) || err != nil {
					t.Errorf("cut at %d: %d %q, %v", i, r.statuses, r.Body, err)
				}
				header := r.Result().Header
				if got := header.Get("Content-Length"); got != test.length {
					t.Errorf("length %q, want %s", got, test.length)
				}
				if kept := header.Get("ETag") != ""; kept != (test.body == test.want) {
					t.Errorf("tag kept: %t", kept)
				}
			}
		})
	}
}

func TestA56ResponsesWithoutABody(t *testing.T) {
	for _, test := range []struct {
		name, media, encoding string
		status                int
	}{
		{"accepted", "", "", 202},
		{"no content", "", "", 204},
		{"not modified", "application/json", "gzip", 304},
		{"to HEAD", "application/json", "gzip", 200},
		{"to HEAD of a stream", "text/event-stream", "", 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := record(test.media)
			r.Header().Set("Content-Length", "17")
			if test.encoding != "" {
				r.Header().Set("Content-Encoding", test.encoding)
			}
			w := NewWriter(r, 100, func([]byte) ([]byte, error) { t.Error("edit was called without a body"); return nil, nil })
			w.WriteHeader(test.status)
			w.WriteHeader(500)
			if err := w.Close(); err != nil || !slices.Equal(r.statuses, []int{test.status}) {
				t.Errorf("statuses %d, %v", r.statuses, err)
			}
			if r.Header().Get("Content-Length") != "17" || r.Header().Get("Content-Encoding") != test.encoding {
				t.Errorf("header %v", r.Header())
			}
		})
	}
	r := record("")
	w := NewWriter(r, 100, same)
	w.WriteHeader(204)
	if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) || r.Body.Len() > 0 {
		t.Errorf("a body with status 204: %q, %v", r.Body, err)
	}
	r = record("")
	if err := NewWriter(r, 100, same).Close(); err != nil || len(r.statuses) > 0 {
		t.Errorf("without a response: %d, %v", r.statuses, err)
	}
}

func TestA56FailedMessagesAreNotPassedOn(t *testing.T) {
	const stream = "text/event-stream"
	for _, test := range []struct {
		name, media, encoding, body string
		limit                       int64
		want                        error
		passed                      string
	}{
		{"a large body", "application/json", "", `[1, 2]`, 5, ErrTooLarge, ""},
		{"a large body without a type", "", "", `[1, 2]`, 5, ErrTooLarge, ""},
		{"a large event", stream, "", "data: []\n\ndata: [1]\n\n", 10, ErrTooLarge, "data: []\n\n"},
		{"a large event without data", stream, "", "data: []\n\nid: 123456789\n\n", 10, ErrTooLarge, "data: []\n\n"},
		{"an encoded body", "application/json", "gzip", "\x1f\x8b", 100, ErrEncoded, ""},
		{"an encoded stream", stream, "br", "data: []\n\n", 100, ErrEncoded, ""},
		{"a body for which edit fails", "application/json", "", "[9]", 100, errShout, ""},
		{"an event for which edit fails", stream, "", "data: []\n\nid: 1\ndata: [9]\n\ndata: []\n\n", 100, errShout,
			"data: []\n\n"},
		{"the last event, without an end", stream, "", "data: []\n\ndata: [9]", 100, errShout, "data: []\n\n"},
		{"the first event", stream, "", "data: [9]\n\n", 100, errShout, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			for size := 1; size <= len(test.body); size++ {
				r := record(test.media)
				if test.encoding != "" {
					r.Header().Set("Content-Encoding", test.encoding)
				}
				w := NewWriter(r, test.limit, shout)
				w.WriteHeader(http.StatusOK)
				for rest := test.body; rest != ""; {
					n := min(size, len(rest))
					if _, err := io.WriteString(w, rest[:n]); err != nil {
						break
					}
					rest = rest[n:]
				}
				if err := w.Close(); err != test.want || w.Err() != test.want {
					t.Fatalf("in pieces of %d: %v, want %v", size, err, test.want)
				}
				_, err := w.Write([]byte("data: []\n\n"))
				if err != test.want || w.FlushError() != test.want {
					t.Errorf("the error is not permanent: %v", err)
				}
				w.WriteHeader(http.StatusTeapot)
				if r.Body.String() != test.passed || len(r.statuses) > 0 != (test.passed != "") {
					t.Errorf("in pieces of %d: %d %q passed", size, r.statuses, r.Body)
				}
			}
		})
	}
}

// A closedRecorder fails to write.
type closedRecorder struct{ *recorder }

func (closedRecorder) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// An error of writing the response is permanent.
func TestA56ErrorsOfWriting(t *testing.T) {
	for _, media := range []string{"text/event-stream", "application/json"} {
		w := NewWriter(closedRecorder{record(media)}, 100, same)
		_, err := io.WriteString(w, "data: []\n\ndata: [1]\n\n")
		if err = errors.Join(err, w.Close()); !errors.Is(err, io.ErrClosedPipe) || !errors.Is(w.Err(), io.ErrClosedPipe) {
			t.Errorf("%s: %v", media, err)
		}
	}
}

func TestA56NothingBypassesTheWriter(t *testing.T) {
	for media, body := range map[string]string{"text/event-stream": "data: {x}\n\n", "application/json": "data: {x}\n\n"} {
		r := record(media)
		w := NewWriter(r, 100, shout)
		n, err := io.Copy(w, struct{ io.Reader }{strings.NewReader(body)})
		if err = errors.Join(err, w.Close()); r.Body.String() != "data: {LOUD}\n\n" || n != int64(len(body)) || err != nil {
			t.Errorf("%s: %d, %q, %v", media, n, r.Body, err)
		}
	}
	w := NewWriter(record(""), 100, same)
	if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("the connection was hijacked: %v", err)
	}
	if _, err := w.Write([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("{}")); err == nil {
		t.Error("wrote after Close")
	}
}

func TestA56InformationalResponsesPassAtOnce(t *testing.T) {
	var early []int
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		r := &statuses{ResponseWriter: rw}
		w := NewWriter(r, 100, shout)
		w.Header().Set("Link", "</x>")
		w.WriteHeader(http.StatusEarlyHints)
		early = slices.Clone(r.all)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "[x]")
		_ = w.Close()
	}))
	defer server.Close()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if string(body) != "[LOUD]" || err != nil || response.StatusCode != 201 || response.ContentLength != 6 ||
		!slices.Equal(early, []int{103}) {
		t.Errorf("%d after %d, %q, %v", response.StatusCode, early, body, err)
	}
}

type statuses struct {
	http.ResponseWriter
	all []int
}

func (s *statuses) WriteHeader(status int) {
	s.all = append(s.all, status)
	s.ResponseWriter.WriteHeader(status)
}

// Trailers are put into the header after the body. They must not become headers.
func TestA56Trailers(t *testing.T) {
	for _, announced := range []bool{true, false} {
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			w := NewWriter(rw, 100, shout)
			name := http.TrailerPrefix + "Sum"
			if announced {
				name = "Sum"
				w.Header().Set("Trailer", "Sum")
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "[x]")
			w.Header().Set(name, "1")
			_ = w.Close()
		}))
		response, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if string(body) != "[LOUD]" || err != nil || response.Header.Get("Sum") != "" || response.Trailer.Get("Sum") != "1" {
			t.Errorf("announced %t: %q, %v, %v, %v", announced, body, response.Header, response.Trailer, err)
		}
		response.Body.Close()
		server.Close()
	}
}

func TestA59OnlyEventsAreEdited(t *testing.T) {
	r := record("application/json")
	r.Header().Set("Content-Encoding", "gzip")
	w := NewWriter(r, 1, shout)
	w.EventsOnly = true
	for _, piece := range []string{"{x", "}"} {
		if _, err := io.WriteString(w, piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.FlushError(); r.Body.String() != "{x}" || !slices.Equal(r.flushes, []int{3}) || err != nil ||
		w.Close() != nil {
		t.Errorf("%q, flushed after %d, %v", r.Body, r.flushes, err)
	}
	r = record("text/event-stream")
	w = NewWriter(r, 100, shout)
	w.EventsOnly = true
	if _, err := io.WriteString(w, "data: {x}\n\n"); r.Body.String() != "data: {LOUD}\n\n" || err != nil {
		t.Errorf("%q, %v", r.Body, err)
	}
}

// A body that edit does not change passes byte for byte, in pieces of any size. Edited bodies do
// not depend on the pieces either. A reader of a stream sees each message edited, and no others.
func FuzzA56Pieces(f *testing.F) {
	f.Add([]byte("\uFEFFid: 1\r\ndata: {\"a\":\rdata: x}\r\n\r\n: c\n\ndata:[0]\r\n\r\nda"), uint8(3))
	f.Add([]byte("event: endpoint\ndata: /x\n\n:\r\ndata: [x]\n\n"), uint8(1))
	f.Add([]byte("data\ndata:\ndata: {x}\r\r\n\ndata:{"), uint8(2))
	f.Add([]byte("data:9\r\r:"), uint8(37))
	f.Add([]byte{}, uint8(0))
	// An edited event lost its own end where CR and LF are mixed.
	f.Add([]byte("data::\rdata:x\n\n:\rdata:["), uint8(9))
	f.Add([]byte("data:{\nid: 1\rdata: x}\n\ndata: {x}\n\n"), uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		if bytes.HasPrefix(body, []byte{0xEF}) && !bytes.HasPrefix(body, []byte("\uFEFF")) {
			return // part of a byte order mark: the result is not specified
		}
		var pieces []string
		for piece := range slices.Chunk(body, int(size)+1) {
			pieces = append(pieces, string(piece))
		}
		for _, media := range []string{"text/event-stream", "application/json"} {
			r := record(media)
			if err := write(r, same, pieces...); err != nil || !bytes.Equal(r.Body.Bytes(), body) {
				t.Fatalf("%s: %q became %q, %v", media, body, r.Body, err)
			}
			whole, inPieces := record(media), record(media)
			err := write(whole, shout, string(body))
			if errPieces := write(inPieces, shout, pieces...); (errPieces == nil) != (err == nil) {
				t.Fatalf("%s: %q: %v, in pieces %v", media, body, err, errPieces)
			}
			if !bytes.Equal(whole.Body.Bytes(), inPieces.Body.Bytes()) {
				t.Fatalf("%s: %q became %q, in pieces %q", media, body, whole.Body, inPieces.Body)
			}
			messages, got := []string{string(body)}, []string{whole.Body.String()}
			if media == "text/event-stream" {
				messages, got = eventsOf(string(body)), eventsOf(whole.Body.String())
			}
			want, wantErr := shouted(messages)
			if (err == nil) != (wantErr == nil) ||
				!slices.Equal(nonEmpty(got), want) &&
					!(err != nil && media != "text/event-stream") {
				t.Fatalf(
					"%s: %q became %q, %v: a reader sees %q, want %q, %v",
					media,
					body,
					whole.Body,
					err,
					got,
					want,
					wantErr,
				)
			}
		}
	})
}

// shouted edits messages up to the first error.
func shouted(messages []string) (all []string, err error) {
	for _, message := range nonEmpty(messages) {
		edited, err := shout([]byte(message))
		if err != nil {
			return nonEmpty(all), err
		}
		all = append(all, string(edited))
	}
	return nonEmpty(all), nil
}

func nonEmpty(texts []string) []string {
	return slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return text == "" })
}

// eventsOf returns the data of events as readers of a stream see it, and of an unterminated event
// at its end. Empty lines of data do not count: they are white space in JSON.
func eventsOf(stream string) (all []string) {
	stream = strings.TrimPrefix(stream, "\uFEFF")
	var data []string
	for line := range strings.SplitSeq(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream)+"\n\n", "\n") {
		if line == "" {
			all, data = append(all, strings.Join(data, "\n")), nil
		} else if value := strings.TrimPrefix(strings.TrimPrefix(line, "data:"), " "); strings.HasPrefix(line, "data:") &&
			value != "" {
			data = append(data, value)
		}
	}
	return all
}

func BenchmarkEvents(b *testing.B) {
	for _, size := range []int{200, 64 << 10} {
		event := "id: 1\nevent: message\ndata: {\"x\":\"" + strings.Repeat("y", size) + "\"}\n\n"
		stream := []byte(strings.Repeat(event, 1<<20/len(event)))
		for name, edit := range map[string]func([]byte) ([]byte, error){"same": same, "edited": func(m []byte) ([]byte,
			error) {
			return m[:len(m)-1], nil
		}} {
			b.Run(name+" "+strconv.Itoa(size), func(b *testing.B) {
				b.SetBytes(int64(len(stream)))
				b.ReportAllocs()
				for b.Loop() {
					w := NewWriter(discardWriter{"Content-Type": {"text/event-stream"}}, 1<<20, edit)
					for piece := range slices.Chunk(stream, 32<<10) {
						if _, err := w.Write(piece); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}

// A discardWriter is a response with this header. It discards the body.
type discardWriter http.Header

func (d discardWriter) Header() http.Header         { return http.Header(d) }
func (d discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (d discardWriter) WriteHeader(int)             {}

// BenchmarkWriter writes messages in pieces of the size that reverse_proxy writes.
func BenchmarkWriter(b *testing.B) {
	const line = `2026-11-16 18:33:33 INFO path=\"/v1/items\" handled the request\n`
	for _, size := range []int{1 << 10, 100 << 10, 5 << 20} {
		message := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat(
			line,
			size/len(line),
		) + `"}]}}`
		for _, media := range []struct{ name, contentType, body string }{
			{"JSON", "application/json", message},
			{"events", "text/event-stream", "event: message\ndata: " + message + "\n\n"},
		} {
			b.Run(fmt.Sprintf("%s/%d", media.name, size), func(b *testing.B) {
				body := []byte(media.body)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					next := discardWriter{}
					w := NewWriter(next, 64<<20, func(message []byte) ([]byte, error) { return message, nil })
					w.Line = func(line []byte) []byte { return line }
					next.Header().Set("Content-Type", media.contentType)
					if media.name == "JSON" {
						next.Header().Set("Content-Length", strconv.Itoa(len(body)))
					}
					for rest := body; len(rest) > 0; {
						n := min(32<<10, len(rest))
						_, _ = w.Write(rest[:n])
						rest = rest[n:]
					}
					if err := w.Close(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
