package streamable

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

func TestEventBuffers(t *testing.T) {
	tests := []struct {
		name  string
		event Event
		data  []string
		want  string
	}{
		{"a message", Event{}, []string{`{"id":1}`}, "data: {\"id\":1}\n\n"},
		{"all fields", Event{ID: "7", Retry: "10", Type: "message"}, []string{`{"id":1}`},
			"id: 7\nretry: 10\nevent: message\ndata: {\"id\":1}\n\n"},
		{"no data", Event{ID: "7"}, nil, "id: 7\ndata: \n\n"},
		{"several lines", Event{}, []string{"{\r\n\t\"id\": \"a\\nb\"\n}"}, "data: {  \t\"id\": \"a\\nb\" }\n\n"},
		{"CR alone", Event{Type: "message"}, []string{"\n[1,\r2]\r\n"}, "event: message\ndata:  [1, 2]  \n\n"},
		{"pieces", Event{}, []string{"\n{\"id\":", "1", "}\r\n"}, "data:  {\"id\":1}  \n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var pieces [][]byte
			for _, text := range tt.data {
				pieces = append(pieces, []byte(text))
			}
			if got := bytes.Join(tt.event.Buffers(pieces...), nil); string(got) != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// FuzzEventBuffers checks that an event contains exactly its message.
func FuzzEventBuffers(f *testing.F) {
	for _, message := range []string{`{"id":1}`, "{\r\n\"a\":\r1\n}", "", "data: x\n\nid: 7\n\n", "{\"a\":\"\u2028\\n\"}",
		"\n", " x "} {
		f.Add([]byte(message), []byte(`{"id":2}`))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		e := &Event{Type: "message"}
		stream := slices.Concat(bytes.Join(e.Buffers(first), nil), bytes.Join(e.Buffers(second), nil))
		var events []string
		var data []byte
		var scanner sse.Scanner
		scanner.Each(stream, func(kind sse.Kind, part []byte) {
			switch kind {
			case sse.Data:
				data = append(data, part...)
			case sse.Dispatch:
				events, data = append(events, string(data)), nil
			}
		})
		if len(events) != 2 {
			t.Fatalf("%q and %q became %q", first, second, stream)
		}
		for i, message := range [][]byte{first, second} {
			if want := strings.NewReplacer("\r", " ", "\n", " ").Replace(string(message)); events[i] != want {
				t.Fatalf("%q was read as %q, want %q", message, events[i], want)
			}
			var before, after bytes.Buffer
			if json.Compact(&before, message) == nil && (json.Compact(&after, []byte(events[i])) != nil ||
				!bytes.Equal(before.Bytes(), after.Bytes())) {
				t.Fatalf("%q differs from %q", events[i], message)
			}
		}
	})
}

// A keep-alive before the first event starts the stream, but never precedes a JSON response.
func TestKeepAliveBeforeTheResponse(t *testing.T) {
	for accept, want := range map[string]string{
		"application/json, text/event-stream": "text/event-stream :\n\ndata: {}\n\n",
		"application/json":                    "application/json {}",
	} {
		recorder := httptest.NewRecorder()
		w := NewWriter(recorder, http.Header{"Accept": {accept}})
		w.KeepAlive()
		w.Answer(http.StatusOK, &Event{Data: []byte("{}")})
		if got := recorder.Header().Get("Content-Type") + " " + recorder.Body.String(); got != want {
			t.Errorf("%s: got %q, want %q", accept, got, want)
		}
	}
}
