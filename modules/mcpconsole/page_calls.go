package mcpconsole

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var (
	callsPage    = page{pattern: "/calls", name: "calls", title: "Calls", show: showCalls, live: followCalls}
	callPage     = page{pattern: "/calls/{id}", name: "call", title: "Call", show: showCall}
	originalPage = page{
		pattern: "/calls/{id}/originals/{original}", name: "original", title: "Whole text", show: showOriginal,
	}
)

const (
	shownCalls = 200     // at once, as in console.js
	shownChars = 100_000 // of a text in a call
	wholeChars = 4 << 20 // of a whole text
)

// calls are what the page of this name shows.
type calls struct {
	Rows    []row // the latest first
	Blank   row   // for console.js to fill in
	Filters []filter
	Any     bool  // there are calls, whether they fit or not
	Last    int64 // the ID of the latest that fits
}

func (c *calls) liveQuery() (name, value string) { return "after", strconv.FormatInt(c.Last, 10) }

// A filter chooses calls.
type filter struct {
	Name, Title, All string
	Values           []string // that there are
	Chosen           string   // "" for all
}

func showCalls(v *visit) (any, error) {
	all, err := get[[]*activity.Call](v, "/calls?limit=1000")
	if err != nil {
		return nil, err
	}
	fitting, err := get[[]*activity.Call](v, callsPath(v, 0))
	if err != nil {
		return nil, err
	}
	page := &calls{Blank: callRow(v, new(activity.Call)), Any: len(all) > 0, Filters: []filter{
		{Name: "gateway", Title: "Gateway", All: "all gateways"}, {Name: "client", Title: "Client", All: "all clients"},
		{Name: "server", Title: "Server", All: "all servers"}, {Name: "tool", Title: "Tool", All: "all tools"},
		{Name: "outcome", Title: "Outcome", All: "all outcomes", Values: []string{"failed"}},
	}}
	for i := range page.Filters {
		f := &page.Filters[i]
		f.Chosen = v.r.URL.Query().Get(f.Name)
		f.Values = append(f.Values, f.Chosen)
		for _, call := range all {
			f.Values = append(f.Values, [...]string{call.Gateway, call.Client, call.Server, call.Name, call.Outcome}[i])
		}
		slices.Sort(f.Values)
		f.Values = slices.DeleteFunc(slices.Compact(f.Values), func(value string) bool { return value == "" })
	}
	for _, call := range fitting {
		page.Rows = append(page.Rows, callRow(v, call))
		page.Last = max(page.Last, call.ID)
	}
	return page, nil
}

// callsPath returns where the admin API has the calls that the query of the page chooses, since the one with an ID.
func callsPath(v *visit, after int64) string {
	query := url.Values{"limit": {strconv.Itoa(shownCalls)}, "after": {strconv.FormatInt(after, 10)}}
	for _, name := range [...]string{"gateway", "client", "server", "tool", "outcome"} {
		query.Set(name, v.r.URL.Query().Get(name))
	}
	return "/calls?" + query.Encode()
}

// followCalls returns the calls that have come since the page was shown, or since the last time.
func followCalls(v *visit) func() (patch, error) {
	after, _ := strconv.ParseInt(v.r.URL.Query().Get("after"), 10, 64)
	return func() (patch, error) {
		fitting, err := get[[]*activity.Call](v, callsPath(v, max(after, 0)))
		if err != nil {
			return patch{}, err
		}
		var changes patch
		for _, call := range fitting {
			changes.Rows = append(changes.Rows, callRow(v, call))
			after = max(after, call.ID)
		}
		return changes, nil
	}
}

// callRow returns the row of a call.
func callRow(v *visit, call *activity.Call) row {
	removed := "–"
	if call.CutChars > 0 {
		removed = humanize.Comma(int64(call.CutChars))
	}
	id := strconv.FormatInt(call.ID, 10)
	return row{
		ID: "call-" + id, Class: outcomeClass(call), Link: v.At("/calls/" + id),
		Cells: []string{
			stamp(call.At), cut(call.Client, 60), cut(callServer(call), 60), cut(callName(call), 80), outcomeWords(call.Outcome),
			duration(call.Seconds), size(float64(call.Received)) + " → " + size(float64(call.Sent)), removed,
		},
	}
}

// callServer returns who has answered a call.
func callServer(call *activity.Call) string {
	if call.Server == "" {
		return "the gateway"
	}
	return call.Server
}

// callName returns what was called.
func callName(call *activity.Call) string {
	if call.Name == "" {
		return call.Method
	}
	return call.Name
}

// outcomeWords returns an outcome in words.
func outcomeWords(outcome string) string { return strings.ReplaceAll(outcome, "_", " ") }

// outcomeClass returns how the outcome of a call looks.
func outcomeClass(call *activity.Call) string {
	switch {
	case call.Failed():
		return "bad"
	case call.Outcome != "ok":
		return "idle"
	}
	return "ok"
}

// A callView is what the page of a call shows.
type callView struct {
	*activity.Call
	Record    bool   // the gateway keeps arguments and results now
	Asked     string // arguments, indented
	Answer    string // the result, indented
	Texts     []answerText
	Originals []original
}

func (c *callView) title() string { return "Call " + strconv.FormatInt(c.ID, 10) }

// An answerText is a text of the result of a call.
type answerText struct {
	Kind  string // "" for a plain text; what it is otherwise
	Parts []part
	More  int // characters that are not shown
}

// An original is a whole text that was cut.
type original struct {
	ID, Address string
	Chars       int  // that it has
	Kept        bool // still
}

func showCall(v *visit) (any, error) {
	call, err := get[*activity.Call](v, "/calls/"+url.PathEscape(v.r.PathValue("id")))
	if err != nil {
		return nil, err
	}
	var originals []original
	for _, id := range call.Originals {
		path := "/calls/" + strconv.FormatInt(call.ID, 10) + "/originals/" + url.PathEscape(id)
		kept, err := get[adminapi.Original](v, path)
		originals = append(originals, original{ID: id, Address: v.At(path), Chars: kept.Chars, Kept: err == nil})
	}
	now, err := get[adminapi.Overview](v, "/overview")
	if err != nil {
		return nil, err
	}
	view := newCallView(call, originals)
	view.Record = slices.ContainsFunc(now.Gateways, func(g adminapi.GatewayStatus) bool {
		return g.Name == call.Gateway && g.Record
	})
	return view, nil
}

func newCallView(call *activity.Call, originals []original) *callView {
	return &callView{
		Call: call, Originals: originals,
		Asked: indented(call.Arguments), Answer: indented(call.Result), Texts: answerTexts(call.Result),
	}
}

// Class returns how the outcome looks.
func (c *callView) Class() string { return outcomeClass(c.Call) }

// Words returns the outcome in words.
func (c *callView) Words() string { return outcomeWords(c.Outcome) }

// By returns who has answered.
func (c *callView) By() string { return callServer(c.Call) }

// What returns what was called.
func (c *callView) What() string { return callName(c.Call) }

// Whole returns the address of a whole text that is still kept, "" for others.
func (c *callView) Whole(handle string) string {
	for _, o := range c.Originals {
		if o.ID == handle && o.Kept {
			return o.Address
		}
	}
	return ""
}

// indented returns JSON with line breaks, as far as it is shown.
func indented(value json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, value, "", "  ") != nil {
		b.Write(value)
	}
	return cut(b.String(), shownChars)
}

// answerTexts returns the texts of a result as an agent reads them: those of its content or messages or contents, or,
// if it was too long to be kept as JSON, the beginning of it.
func answerTexts(result json.RawMessage) []answerText {
	var beginning string
	if json.Unmarshal(result, &beginning) == nil {
		return []answerText{newAnswerText("the beginning of the result", beginning)}
	}
	type block struct {
		Type     string          `json:"type"`
		Text     *string         `json:"text"`
		MIMEType string          `json:"mimeType"`
		Data     string          `json:"data"`
		Blob     string          `json:"blob"`
		Resource json.RawMessage `json:"resource"`
	}
	var answer struct {
		Content  []block `json:"content"`
		Contents []block `json:"contents"`
		Messages []struct {
			Content block `json:"content"`
		} `json:"messages"`
		Message string `json:"message"` // of an error
	}
	_ = json.Unmarshal(result, &answer) // what is not of this form is shown as JSON only
	blocks := slices.Concat(answer.Content, answer.Contents)
	for _, message := range answer.Messages {
		blocks = append(blocks, message.Content)
	}
	var texts []answerText
	for _, b := range blocks {
		if b.Resource != nil {
			_ = json.Unmarshal(b.Resource, &b)
		}
		if b.Text != nil {
			texts = append(texts, newAnswerText("", *b.Text))
			continue
		}
		decoded := float64(len(b.Data)+len(b.Blob)) * 3 / 4
		texts = append(texts, answerText{Kind: strings.Trim(b.Type+", "+b.MIMEType+", "+size(decoded), ", ")})
	}
	if answer.Message != "" {
		texts = append(texts, newAnswerText("error", answer.Message))
	}
	return texts
}

func newAnswerText(kind, text string) answerText {
	more := max(0, utf8.RuneCountInString(text)-shownChars)
	return answerText{Kind: kind, Parts: gaps(cut(text, shownChars)), More: more}
}

// A wholeText is what the page of an original shows.
type wholeText struct {
	adminapi.Original
	Call string // address
	More int    // characters that are not shown
}

func showOriginal(v *visit) (any, error) {
	call := "/calls/" + url.PathEscape(v.r.PathValue("id"))
	kept, err := get[adminapi.Original](v, call+"/originals/"+url.PathEscape(v.r.PathValue("original")))
	if err != nil {
		return nil, err
	}
	whole := &wholeText{Original: kept, Call: v.At(call)}
	if kept.Chars > wholeChars {
		whole.Text, whole.More = cut(kept.Text, wholeChars), kept.Chars-wholeChars
	}
	return whole, nil
}
