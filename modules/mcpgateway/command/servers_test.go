package command

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestImportServers(t *testing.T) {
	for _, tt := range []struct{ name, text, out, notes, err string }{
		{"a server", `{"mcpServers":{"a":{"url":"https://x.test/mcp"}}}`, "server a https://x.test/mcp\n", "", ""},
		{"a secret", `{"mcpServers":{"a":{"command":"a","env":{"API_KEY":"s3cret-0123456789"}}}}`, "server a stdio a {\n",
			"set API_KEY to the value in the file", ""},
		{"an invalid server", `{"mcpServers":{"a":{"command":"a","tools":1}}}`, "", "mcp.json:1: a: left out",
			"no servers to import"},
		{"invalid JSON", `{`, "", "", "mcp.json:1: not JSON"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, notes bytes.Buffer
			path := filepath.Join(t.TempDir(), "mcp.json")
			err := importServers(&out, &notes, strings.NewReader(tt.text), path, "", false)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(out.String(), tt.out) || (out.Len() > 0) != (tt.out != "") {
				t.Errorf("printed %s", &out)
			}
			if !strings.Contains(notes.String(), tt.notes) || (notes.Len() > 0) != (tt.notes != "") {
				t.Errorf("got notes %s", &notes)
			}
		})
	}
}
