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

// inPieces returns a reader that returns at most size bytes at a time.
func inPieces(text []byte, size int) io.Reader {
	var pieces []io.Reader
	for piece := range slices.Chunk(text, size) {
		pieces = append(pieces, bytes.NewReader(piece))
	}
	return iotest.DataErrReader(io.MultiReader(pieces...))
}

// FuzzLines checks that the lines of a text, except blank ones, are read in pieces of any size.
func FuzzLines(f *testing.F) {
	for _, text := range []string{"{}\n{}\r\n\n \n[1]", "\u2028\n\x00\n", strings.Repeat("x", 70<<10) + "\ny", "",
		"\r\r\n", "a\rb\n"} {
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
				t.Fatalf("text %q: got line %q, %v, want %q", text, got.text, got.err, part)
			}
		}
		if got := <-lines; got.err != io.EOF || got.text != nil {
			t.Fatalf("text %q: got %q, %v at the end", text, got.text, got.err)
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

// FuzzRun checks that for any input, each line of the output is one message: a response to each
// request, with the same id, and an error for each line that is not JSON.
func FuzzRun(f *testing.F) {
	for _, input := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/x"}` + "\n",
		`{"id":"a","method":"initialize","params":{"protocolVersion":"2025-11-25"}}` + "\nx\n[]\n",
		`{"id":1,"method":"m"}` + "\n" + `{"id":1,"method":"m"}` + "\n" + `{"id":1.0,"method":"m"}`, `{"id":1,"result":{}}` +
			"\n{}\n" + `{"id":{},"method":"m"}`, `{"id":null,"method":"m"}` + "\n{\"method\":\"\xff\"}",
		`{"id":7,"method":"tools/call","params":{"name":"é",` +
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		"{\"id\":1\n" + `{"id":1,"method":""}`,
		`{"id":7,"method":"subscriptions/listen"}` + "\n" + `{"method":"notifications/cancelled","params":{"requestId":7}}`,
	} {
		f.Add([]byte(input))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if bytes.Contains(input, []byte("cancel")) || bytes.Contains(input, []byte(`\u`)) ||
			bytes.Count(input, []byte("\n")) > 50 {
			return // a canceled request may or may not get a response; long inputs take too long
		}
		var out bytes.Buffer
		bridge := Bridge{Transport: echo{}, URL: "http://localhost/mcp"}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := bridge.Run(ctx, bytes.NewReader(input), &out); err != nil {
			t.Fatal(err)
		}
		want, isPlain := requested(input)
		var got []string
		for line := range strings.Lines(out.String()) {
			var m struct {
				JSONRPC string
				ID      json.RawMessage
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
				t.Fatalf("input %q: invalid message %q: %v", input, line, err)
			}
			got = append(got, string(m.ID))
		}
		slices.Sort(got)
		if isPlain && !slices.Equal(got, want) {
			t.Fatalf("input %q: got responses with ids %q, want %q", input, got, want)
		}
	})
}

// requested returns the sorted ids that need a response, with null for a line that is not JSON. The
// result is valid only if isPlain: each line is either not JSON, or a request whose id is a number
// that no other line has.
func requested(input []byte) (ids []string, isPlain bool) {
	for line := range strings.SplitSeq(string(input), "\n") {
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
