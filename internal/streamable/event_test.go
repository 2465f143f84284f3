package streamable

import (
	"bytes"
	"testing"
)

func TestEventBuffers(t *testing.T) {
	tests := []struct {
		name  string
		event Event
		data  []string
		want  string
	}{
		{"a message", Event{}, []string{`{"id":1}`}, "data: {\"id\":1}\n\n"},
		{"all fields", Event{ID: "7", Retry: "10", Type: "message"}, []string{`{"id":1}`}, "id: 7\nretry: 10\nevent: message\ndata: {\"id\":1}\n\n"},
		{"no data", Event{ID: "7"}, nil, "id: 7\ndata: \n\n"},
		{"several lines", Event{}, []string{"{\r\n\t\"id\": \"a\\nb\"\n}"}, "data: {  \t\"id\": \"a\\nb\" }\n\n"},
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
