package mcpconsole

import (
	"cmp"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
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
	shownCalls = 200     // rows, as in console.js
	shownChars = 100_000 // characters of a text on the page of a call
	wholeChars = 4 << 20 // characters of an original on its own page
)

// calls is the data of the calls page.
type calls struct {
	Rows    []row // the latest first
	Blank   row   // template for console.js
	Filters []filter
	Any     bool  // there are calls, matching or not
	Last    int64 // ID of the latest matching call
}

func (c *calls) liveQuery() (name, value string) { return "after", strconv.FormatInt(c.Last, 10) }

// A filter selects calls by one property.
type filter struct {
	Name, Title, All string
	Values           []string // existing values
	Chosen           string   // "" for all
}

func showCalls(v *consoleRequest) (any, error) {
	all, err := get[[]*activity.Call](v, "/calls?limit=1000")
	if err != nil {
		return nil, err
	}
	matching, err := get[[]*activity.Call](v, callsPath(v, 0))
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
	for _, call := range matching {
		page.Rows = append(page.Rows, callRow(v, call))
		page.Last = max(page.Last, call.ID)
	}
	return page, nil
}

// callsPath returns the admin API path of the calls that the page's query selects and that are
// newer than the call with ID after.
func callsPath(v *consoleRequest, after int64) string {
	query := url.Values{"limit": {strconv.Itoa(shownCalls)}, "after": {strconv.FormatInt(after, 10)}}
	for _, name := range [...]string{"gateway", "client", "server", "tool", "outcome"} {
		query.Set(name, v.r.URL.Query().Get(name))
	}
	return "/calls?" + query.Encode()
}

// followCalls returns a function that returns the calls since the page was shown, or since the
// function was last called.
func followCalls(v *consoleRequest) func() (patch, error) {
	after, _ := strconv.ParseInt(v.r.URL.Query().Get("after"), 10, 64)
	return func() (patch, error) {
		matching, err := get[[]*activity.Call](v, callsPath(v, max(after, 0)))
		if err != nil {
			return patch{}, err
		}
		var changes patch
		for _, call := range matching {
			changes.Rows = append(changes.Rows, callRow(v, call))
			after = max(after, call.ID)
		}
		return changes, nil
	}
}

// callRow returns the table row of a call.
func callRow(v *consoleRequest, call *activity.Call) row {
	removed := "–"
	if call.CutChars > 0 {
		removed = humanize.Comma(int64(call.CutChars))
	}
	id, shown := strconv.FormatInt(call.ID, 10), shownCall{call}
	return row{
		ID: "call-" + id, Class: shown.Class(), Link: v.Link("/calls/" + id),
		Cells: []string{
			stamp(call.At), cut(call.Client, 60), cut(shown.ServerText(), 60), cut(shown.Called(), 80), shown.OutcomeText(),
			duration(call.Seconds), size(float64(call.Received)) + " → " + size(float64(call.Sent)), removed,
		},
	}
}

// A shownCall is a call as pages show it.
type shownCall struct{ *activity.Call }

// ServerText returns the server that answered.
func (c shownCall) ServerText() string { return cmp.Or(c.Server, "the gateway") }

// Called returns the tool, prompt or method.
func (c shownCall) Called() string { return cmp.Or(c.Name, c.Method) }

// OutcomeText returns the outcome as text.
func (c shownCall) OutcomeText() string { return strings.ReplaceAll(c.Outcome, "_", " ") }

// Class returns the CSS class of the outcome.
func (c shownCall) Class() string {
	switch {
	case c.Failed():
		return "bad"
	case c.Outcome != "ok":
		return "idle"
	}
	return "ok"
}

// A callView is the data of a call's page.
type callView struct {
	shownCall
	Label         string // of the gateway
	Record        bool   // the gateway now records arguments and results
	ArgumentsText string // arguments, indented
	ResultText    string // the result, indented
	Texts         []resultText
	Originals     []original
}

func (c *callView) title() string { return "Call " + strconv.FormatInt(c.ID, 10) }

// A resultText is a text in the result of a call, or the description of another content block.
type resultText struct {
	Kind  string // "" for a plain text, else the type of the block
	Parts []part
	More  int // number of characters not shown
}

// An original is the original of a shortened text.
type original struct {
	ID, Address string
	Chars       int  // its length
	Kept        bool // not expired
}

func showCall(v *consoleRequest) (any, error) {
	call, err := get[*activity.Call](v, "/calls/"+url.PathEscape(v.r.PathValue("id")))
	if err != nil {
		return nil, err
	}
	var originals []original
	for _, id := range call.Originals {
		path := "/calls/" + strconv.FormatInt(call.ID, 10) + "/originals/" + url.PathEscape(id)
		kept, err := get[adminapi.Original](v, path)
		originals = append(originals, original{ID: id, Address: v.Link(path), Chars: kept.Chars, Kept: err == nil})
	}
	now, err := get[adminapi.Overview](v, "/overview")
	if err != nil {
		return nil, err
	}
	view := newCallView(call, originals)
	for _, g := range now.Gateways {
		if g.Name == call.Gateway {
			view.Label, view.Record = g.Label(), view.Record || g.Record
		}
	}
	return view, nil
}

func newCallView(call *activity.Call, originals []original) *callView {
	return &callView{
		shownCall: shownCall{call}, Label: call.Gateway, Originals: originals,
		ArgumentsText: indented(call.Arguments), ResultText: indented(call.Result), Texts: resultTexts(call.Result),
	}
}

// OriginalURL returns the URL of an original that is still kept, else "".
func (c *callView) OriginalURL(handle string) string {
	for _, o := range c.Originals {
		if o.ID == handle && o.Kept {
			return o.Address
		}
	}
	return ""
}

// indented returns indented JSON, cut to shownChars. Unlike json.Indent, it stops there: where JSON
// is deeply nested, its indentation is a thousand times as long.
func indented(value json.RawMessage) string {
	if !json.Valid(value) {
		return cut(string(value), shownChars)
	}
	var b strings.Builder
	depth, last, quoted := 0, byte(0), false // last is the last byte outside strings
	for i := 0; i < len(value) && b.Len() <= utf8.UTFMax*shownChars; i++ {
		c := value[i]
		if quoted {
			b.WriteByte(c)
			if c == '\\' {
				i++
				b.WriteByte(value[i])
			}
			quoted = c != '"'
			continue
		}
		if strings.IndexByte(" \t\r\n", c) >= 0 {
			continue
		}
		opened, closes := last == '{' || last == '[', c == '}' || c == ']'
		if opened {
			depth++
		}
		if closes {
			depth--
		}
		if opened != closes || last == ',' {
			b.WriteString("\n" + strings.Repeat("  ", depth))
		}
		b.WriteByte(c)
		if c == ':' {
			b.WriteByte(' ')
		}
		last, quoted = c, c == '"'
	}
	return cut(b.String(), shownChars)
}

// resultTexts returns the texts of a result: its content, messages or contents. A result that was
// too long to be kept as JSON is a JSON string with its beginning.
func resultTexts(result json.RawMessage) []resultText {
	var beginning string
	if json.Unmarshal(result, &beginning) == nil {
		return []resultText{newResultText("the beginning of the result", beginning)}
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
	_ = json.Unmarshal(result, &answer) // other results are shown only as JSON
	blocks := slices.Concat(answer.Content, answer.Contents)
	for _, message := range answer.Messages {
		blocks = append(blocks, message.Content)
	}
	var texts []resultText
	for _, b := range blocks {
		if b.Resource != nil {
			_ = json.Unmarshal(b.Resource, &b)
		}
		if b.Text != nil {
			texts = append(texts, newResultText("", *b.Text))
			continue
		}
		decoded := float64(len(b.Data)+len(b.Blob)) * 3 / 4
		texts = append(texts, resultText{Kind: strings.Trim(b.Type+", "+b.MIMEType+", "+size(decoded), ", ")})
	}
	if answer.Message != "" {
		texts = append(texts, newResultText("error", answer.Message))
	}
	return texts
}

func newResultText(kind, text string) resultText {
	more := max(0, utf8.RuneCountInString(text)-shownChars)
	return resultText{Kind: kind, Parts: splitGaps(cut(text, shownChars)), More: more}
}

// A wholeText is the data of an original's page.
type wholeText struct {
	adminapi.Original
	Call string // URL
	More int    // number of characters not shown
}

func showOriginal(v *consoleRequest) (any, error) {
	call := "/calls/" + url.PathEscape(v.r.PathValue("id"))
	kept, err := get[adminapi.Original](v, call+"/originals/"+url.PathEscape(v.r.PathValue("original")))
	if err != nil {
		return nil, err
	}
	whole := &wholeText{Original: kept, Call: v.Link(call)}
	if kept.Chars > wholeChars {
		whole.Text, whole.More = cut(kept.Text, wholeChars), kept.Chars-wholeChars
	}
	return whole, nil
}

// A part is a piece of a shortened text: kept text or a gap.
type part struct {
	Text   string
	Gap    string // description of a gap, else ""
	Handle string // handle of the original, if the marker has one
}

// markers matches the markers of internal/mask, internal/focus and internal/jsoncut. It takes
// milliseconds to compile, for which commands without a console should not wait.
var markers = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(markerPattern) })

const markerPattern = `(?:\.\.\. )?\[KIMI_PROXY_OBSERVATION_MASKED original_chars=(?P<original>\d+)` +
	`(?: head=(?P<head>\d+) tail=(?P<tail>\d+)| lines=(?P<kept>\d+)/(?P<lines>\d+))?` +
	`(?: id=(?P<id>obs_\w+))?[^\]\n]{0,300}\](?:[^\n]{0,300} \.\.\.)?` +
	`|\[lines? (?P<first>\d+)(?:-(?P<last>\d+))? left out\]` +
	`|\.\.\. \[(?P<left>\d+)(?: of (?P<of>\d+))? (?P<unit>items|members|lines|characters of media|characters) left out` +
	`(?: id=(?P<handle>obs_\w+))?[^\]\n]{0,300}\] \.\.\.`

// splitGaps splits a shortened text at its markers. It cannot distinguish a marker from a text of
// the server that looks like one.
func splitGaps(text string) []part {
	var parts []part
	end, markers := 0, markers()
	for _, match := range markers.FindAllStringSubmatchIndex(text, -1) {
		found := func(name string) string {
			i := markers.SubexpIndex(name)
			if match[2*i] < 0 {
				return ""
			}
			return text[match[2*i]:match[2*i+1]]
		}
		gap := gapText(found)
		if gap == "" {
			continue
		}
		if match[0] > end {
			parts = append(parts, part{Text: text[end:match[0]]})
		}
		parts = append(parts, part{Text: text[match[0]:match[1]], Gap: gap, Handle: found("id") + found("handle")})
		end = match[1]
	}
	if end < len(text) || len(parts) == 0 {
		parts = append(parts, part{Text: text[end:]})
	}
	return parts
}

// gapText describes a gap from the fields of its marker, "" if they are inconsistent.
func gapText(found func(name string) string) string {
	n := func(name string) int64 {
		n, _ := strconv.ParseInt(found(name), 10, 64)
		return n
	}
	counted := func(n int64, unit string) string {
		if n <= 0 {
			return ""
		}
		return humanize.Comma(n) + " " + unit
	}
	switch {
	case found("lines") != "":
		return counted(n("lines")-n("kept"), "of "+humanize.Comma(n("lines"))+" lines are missing")
	case found("head") != "":
		return counted(n("original")-n("head")-n("tail"), "characters are missing")
	case found("original") != "":
		return counted(n("original"), "characters were shortened")
	case found("last") != "":
		return counted(n("last")-n("first")+1, "lines are missing")
	case found("first") != "":
		return "1 line is missing"
	case found("of") != "":
		return counted(n("left"), "of "+humanize.Comma(n("of"))+" "+found("unit")+" are missing")
	}
	return counted(n("left"), found("unit")+" are missing")
}

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
