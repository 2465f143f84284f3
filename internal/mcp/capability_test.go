package mcp

import "testing"

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
