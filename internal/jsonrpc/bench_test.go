package jsonrpc

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

var benchmarked = []struct{ name, data string }{
	{"small", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__read",` +
		`"arguments":{"path":"/tmp/a.txt","limit":100}}}`},
	{"modern", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__read",` +
		`"arguments":{"path":"/tmp/a.txt"},"_meta":{"progressToken":5,` +
		`"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{"sampling":{},"roots":{}},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"client","version":"1.0"}}}}`},
	{"large", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__write",` +
		`"arguments":{"path":"/tmp/a.txt","lines":[` + strings.Repeat(`{"n":1,"text":"some words in a line\n"},`, 1000) +
		`{}]}}}`},
}

func BenchmarkRead(b *testing.B) {
	messages := append(benchmarked, []struct{ name, data string }{
		{"answer", `{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"` + strings.Repeat("some words ",
			200) + `"}],"isError":false,"structuredContent":{"a":1,"b":[1,2,3]}}}`},
	}...)
	for _, message := range messages {
		data := []byte(message.data)
		for _, read := range []struct {
			name string
			read func(*Message) *Failure
		}{
			{"Read", func(m *Message) *Failure { return m.Read(data) }},
			{"ReadExact", func(m *Message) *Failure { return m.ReadExact(data) }},
			{"ReadRequest", func(m *Message) *Failure { return m.ReadRequest(data) }},
			{"ReadRequest and CheckExact", func(m *Message) *Failure {
				if failure := m.ReadRequest(data); failure != nil {
					return failure
				}
				return m.CheckExact(true)
			}},
		} {
			b.Run(message.name+"/"+read.name, func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				var m Message
				for b.Loop() {
					if failure := read.read(&m); failure != nil {
						b.Fatal(failure)
					}
				}
			})
		}
	}
}

func BenchmarkEdited(b *testing.B) {
	for _, message := range benchmarked {
		var m Message
		if failure := m.Read([]byte(message.data)); failure != nil {
			b.Fatal(failure)
		}
		for _, edit := range []struct {
			name string
			edit jsonspan.Edit
		}{
			{"id", m.Replace(ID, []byte(`"x:17"`))},
			{"name", m.Replace(Name, []byte(`"read"`))},
			{"meta", m.InsertMeta([]byte(`"a":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"`))},
		} {
			for _, way := range []struct {
				name string
				read func() (Message, *Failure)
			}{
				{"spliced only", func() (edited Message, _ *Failure) {
					edited.Raw = jsonspan.Spliced(m.Raw, edit.edit)
					return edited, nil
				}},
				{"spliced and read", func() (edited Message, _ *Failure) {
					failure := edited.Read(jsonspan.Spliced(m.Raw, edit.edit))
					return edited, failure
				}},
				{"Edited", func() (Message, *Failure) { return m.Edited(edit.edit) }},
			} {
				b.Run(message.name+"/"+edit.name+"/"+way.name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if edited, failure := way.read(); failure != nil || len(edited.Raw) == 0 {
							b.Fatal(failure)
						}
					}
				})
			}
		}
	}
}

func BenchmarkReadWith(b *testing.B) {
	more := []string{"result.contents.*.uri", "result.content.*.uri", "result.content.*.resource.uri", "error.data.uri",
		"result.taskId"}
	paths, alone := CompilePaths(more...), jsonspan.CompilePaths(more...)
	data := []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[` +
		strings.Repeat(`{"type":"resource","resource":{"uri":"file:///tmp/a.txt","text":"`+strings.Repeat("some words ",
			20)+`"}},`, 20) +
		`{"type":"text","text":"the end"}],"isError":false}}`)
	places := 0
	found := func(int, jsonspan.Value) { places++ }
	for _, way := range []struct {
		name string
		read func(m *Message) *Failure
	}{
		{"Read and Find", func(m *Message) *Failure {
			if err := alone.Find(data, found); err != nil {
				b.Fatal(err)
			}
			return m.Read(data)
		}},
		{"ReadWith", func(m *Message) *Failure {
			failure, _ := m.ReadWith(data, paths, found)
			return failure
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var m Message
			for b.Loop() {
				if failure := way.read(&m); failure != nil {
					b.Fatal(failure)
				}
			}
		})
	}
}
