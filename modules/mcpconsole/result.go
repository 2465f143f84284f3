package mcpconsole

import (
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// A pane shows the result of a tool.
type pane struct {
	Title      string
	Bytes      int // size of the result as JSON
	Tokens     int // of its texts
	Failed     bool
	Texts      []resultText
	More       int    // number of texts not shown
	Structured string // structured content as JSON, or empty
	JSON       string // whole result
}

// maxTexts is how many texts of a result are shown.
const maxTexts = 100

// newPane returns the pane of a result.
func newPane(title string, result json.RawMessage) pane {
	var parsed struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool            `json:"isError"`
	}
	_ = json.Unmarshal(result, &parsed) // other results are shown only as JSON
	p := pane{
		Title: title, Bytes: len(result), Failed: parsed.IsError, Texts: resultTexts(result),
		Structured: indented(parsed.Structured), JSON: indented(result),
	}
	p.More = max(0, len(p.Texts)-maxTexts)
	p.Texts = p.Texts[:len(p.Texts)-p.More]
	for _, c := range parsed.Content {
		p.Tokens += tokens.Count(c.Text)
	}
	return p
}
