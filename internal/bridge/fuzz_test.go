package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// inPieces returns a reader that returns so many bytes at a time.
func inPieces(text []byte, size int) io.Reader {
	var pieces []io.Reader
	for piece := range slices.Chunk(text, size) {
		pieces = append(pieces, bytes.NewReader(piece))
	}
	return iotest.DataErrReader(io.MultiReader(pieces...))
}

// Lines are those of the text that are not blank, however it comes.
func FuzzLines(f *testing.F) {
	for _, text := range []string{"{}\n{}\r\n\n \n[1]", "\u2028\n\x00\n", strings.Repeat("x", 70<<10) + "\ny", "", "\r\r\n", "a\rb\n"} {
		f.Add([]byte(text), uint16(2))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint16) {
		lines := make(chan line)
		go readLines(inPieces(text, int(size)+1), lines, t.Context().Done())
		for part := range strings.SplitSeq(string(text), "\n") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			if got := <-lines; string(got.text) != part || got.err != nil {
				t.Fatalf("%q has the line %q, %v, want %q", text, got.text, got.err, part)
			}
		}
		if got := <-lines; got.err != io.EOF || got.text != nil {
			t.Fatalf("%q ends with %q, %v", text, got.text, got.err)
		}
	})
}

// echo is an endpoint that answers every request with an empty result.
type echo struct{}

func (echo) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	var m map[string]json.RawMessage
	_ = json.Unmarshal(body, &m)
	res := &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{}, Body: http.NoBody, Request: r}
	if id, has := m["id"]; r.Method == http.MethodPost && has && m["method"] != nil {
		res.StatusCode = http.StatusOK
		res.Header.Set("Content-Type", "application/json")
		res.Body = io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{}}`))
	} else if r.Method == http.MethodGet {
		res.StatusCode = http.StatusMethodNotAllowed
	}
	return res, nil
}

// Whatever a client writes, it reads one message on each line: an answer to each of its
// requests, with the same id, and one to each line that is no JSON.
func FuzzRun(f *testing.F) {
	for _, in := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/x"}` + "\n", `{"id":"a","method":"initialize","params":{"protocolVersion":"2025-11-25"}}` + "\nx\n[]\n",
		`{"id":1,"method":"m"}` + "\n" + `{"id":1,"method":"m"}` + "\n" + `{"id":1.0,"method":"m"}`, `{"id":1,"result":{}}` + "\n{}\n" + `{"id":{},"method":"m"}`, `{"id":null,"method":"m"}` + "\n{\"method\":\"\xff\"}",
		`{"id":7,"method":"tools/call","params":{"name":"é","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		"{\"id\":1\n" + `{"id":1,"method":""}`,
		`{"id":7,"method":"subscriptions/listen"}` + "\n" + `{"method":"notifications/cancelled","params":{"requestId":7}}`,
	} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if bytes.Contains(in, []byte("cancel")) || bytes.Contains(in, []byte(`\u`)) || bytes.Count(in, []byte("\n")) > 50 {
			return // whether somebody still waits is up to chance, or there is too much of it
		}
		var out bytes.Buffer
		bridge := Bridge{Transport: echo{}, URL: "http://localhost/mcp"}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := bridge.Run(ctx, bytes.NewReader(in), &out); err != nil {
			t.Fatal(err)
		}
		want, isPlain := requested(in)
		var got []string
		for line := range strings.Lines(out.String()) {
			var m struct {
				JSONRPC string
				ID      json.RawMessage
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
				t.Fatalf("%q was told %q: %v", in, line, err)
			}
			got = append(got, string(m.ID))
		}
		slices.Sort(got)
		if isPlain && !slices.Equal(got, want) {
			t.Fatalf("%q was answered %q, want %q", in, got, want)
		}
	})
}

// requested returns the ids that want an answer, sorted: null for a line that is no JSON.
// It can tell if lines are plain: either that, or requests with numbers for their ids, of
// which none is there twice.
func requested(in []byte) (ids []string, isPlain bool) {
	for line := range strings.SplitSeq(string(in), "\n") {
		var m map[string]json.RawMessage
		switch line = strings.TrimSpace(line); {
		case line == "":
			continue
		case !json.Valid([]byte(line)) || !utf8.ValidString(line):
			ids = append(ids, "null")
			continue
		case json.Unmarshal([]byte(line), &m) != nil || len(m) != 2 || strings.Count(line, `"`) != 6:
			return nil, false
		}
		id := string(m["id"])
		if _, err := strconv.Atoi(id); err != nil || slices.Contains(ids, id) || !bytes.HasPrefix(m["method"], []byte(`"`)) {
			return nil, false
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, true
}
