package mcpconsole

import (
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// A pane shows a result of a tool.
type pane struct {
	Title      string
	Bytes      int // of the result, as JSON
	Tokens     int // of its texts
	Failed     bool
	Texts      []answerText
	More       int    // texts that are not shown
	Structured string // content, as JSON; empty if there is none
	JSON       string // all of it
}

// maxTexts is how many texts of a result are shown.
const maxTexts = 100

// newPane returns what shows a result.
func newPane(title string, result json.RawMessage) pane {
	var said struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool            `json:"isError"`
	}
	_ = json.Unmarshal(result, &said) // what is not of this form is shown as JSON only
	p := pane{
		Title: title, Bytes: len(result), Failed: said.IsError, Texts: answerTexts(result),
		Structured: indented(said.Structured), JSON: indented(result),
	}
	p.More = max(0, len(p.Texts)-maxTexts)
	p.Texts = p.Texts[:len(p.Texts)-p.More]
	for _, c := range said.Content {
		p.Tokens += tokens.Count(c.Text)
	}
	return p
}
