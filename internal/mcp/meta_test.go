package mcp

import (
	"net/http"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestRequestMeta(t *testing.T) {
	for level, want := range map[string]string{
		"": `{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientInfo":{"name":"c"},"io.modelcontextprotocol/clientCapabilities":{}}`,
		"info": `{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientInfo":{"name":"c"},"io.modelcontextprotocol/clientCapabilities":{},` +
			`"io.modelcontextprotocol/logLevel":"info"}`,
	} {
		got := RequestMeta([]byte(`{"name":"c"}`), []byte(`{}`), level)
		if string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
		var m jsonrpc.Message
		if failure := m.ReadRequest(jsonrpc.Request(1, "tools/list", append(append([]byte(`{"_meta":`), got...),
			'}'))); failure != nil {
			t.Fatal(failure)
		}
		header := http.Header{}
		header.Set(VersionHeader, Stateless)
		header.Set("Mcp-Method", "tools/list")
		if failure := CheckModern(header, &m); failure != nil || m.Text(jsonrpc.LogLevel) != level {
			t.Errorf("%v, level %q", failure, m.Text(jsonrpc.LogLevel))
		}
	}
}

func TestURIParams(t *testing.T) {
	if got := URIParams(`file:///a"b`); string(got) != `{"uri":"file:///a\"b"}` {
		t.Errorf("got %s", got)
	}
}

func TestKnowsTasks(t *testing.T) {
	for capabilities, want := range map[string]bool{
		`{"extensions":{"io.modelcontextprotocol/tasks":{}}}`:     true,
		`{"extensions":{"io.modelcontextprotocol/tasks":true}}`:   false,
		`{"extensions":{"io":{"modelcontextprotocol/tasks":{}}}}`: false,
		`{"tasks":{}}`: false,
		``:             false,
	} {
		if got := SupportsTasks([]byte(capabilities)); got != want {
			t.Errorf("%s: got %t", capabilities, got)
		}
	}
}
