package jsonrpc

import (
	"strings"
	"testing"
)

var benchmarked = []struct{ name, data string }{
	{"small", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__read","arguments":{"path":"/tmp/a.txt","limit":100}}}`},
	{"modern", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__read","arguments":{"path":"/tmp/a.txt"},"_meta":{"progressToken":5,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"sampling":{},"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"client","version":"1.0"}}}}`},
	{"large", `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"files__write","arguments":{"path":"/tmp/a.txt","lines":[` + strings.Repeat(`{"n":1,"text":"some words in a line\n"},`, 1000) + `{}]}}}`},
}

func BenchmarkRead(b *testing.B) {
	messages := append(benchmarked, []struct{ name, data string }{
		{"answer", `{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"` + strings.Repeat("some words ", 200) + `"}],"isError":false,"structuredContent":{"a":1,"b":[1,2,3]}}}`},
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
