package mcpconsole

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// newTestRequest returns a request for a path of the console.
func newTestRequest(path string) *consoleRequest {
	h := &Handler{Path: "/console", Price: 3, Currency: "$"}
	return &consoleRequest{h: h, w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodGet, path, nil),
		Token: "secret"}
}

// render returns a page as HTML.
func render(t *testing.T, v *consoleRequest, p page, data any) string {
	t.Helper()
	var b bytes.Buffer
	if err := templates().ExecuteTemplate(&b, p.name, layoutData{v, &p, data}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// fixtures returns data for all pages, with a text in every place that clients and servers
// determine.
func fixtures(v *consoleRequest, text string) map[*page]any {
	at := time.Date(2026, 11, 17, 20, 21, 14, 0, time.UTC)
	sums := activity.Sums{Calls: 7, Failed: 1, Received: 52310, Sent: 4200, CutChars: 48310}
	saving := adminapi.Saving{Sums: sums, Tokens: 12077, Money: 0.036}
	recent := make([]activity.Interval, 60)
	for i := range recent {
		recent[i] = activity.Interval{At: at.Add(time.Duration(i) * 10 * time.Second),
			Sums: activity.Sums{Calls: int64(i % 4), Failed: int64(i % 2)}}
	}
	tool := activity.Tool{Gateway: text, Server: text, Name: text}
	call := &activity.Call{
		ID: 7, At: at, Gateway: text, Client: text, Address: text, Server: text, Method: text, Name: text, RequestID: text,
		Outcome:   text,
		ErrorCode: -32000, Rule: text, Confirmed: true, Seconds: 0.1, Received: 52310, Sent: 4200, CutTexts: 2,
		CutChars:  48310,
		Originals: []string{text, "obs_gone"}, HasContent: true,
	}
	call.Arguments, _ = json.Marshal(map[string]string{"path": text})
	call.Result, _ = json.Marshal(map[string]any{"content": []any{
		map[string]string{"type": "text", "text": text +
			"\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=52310 head=2000 tail=2000 id=obs_4kXbZ0aQe7] " + text +
			" ...\n" + text},
		map[string]string{"type": text, "mimeType": text, "data": "AAAA"},
	}})
	whole := original{ID: text, Address: v.Link("/calls/7/originals/x"), Chars: 52310, Kept: true}
	all := pageFixtures(text)
	maps.Copy(all, map[*page]any{
		&overviewPage: newOverview(
			adminapi.Overview{Since: at, Total: sums, Recent: recent, Gateways: []adminapi.GatewayStatus{
				{Name: text, Path: text, URLs: []string{text}, Admits: text, Servers: 2, Up: 1, Clients: 3},
			}, Store: &mcpstore.Status{Engine: text, Address: text, Error: text, Outages: 2, LastError: text, Waiting: 3}},
			adminapi.Savings{
				Since: at, Total: saving, Price: 3, Tools: []adminapi.ToolSaving{{Tool: tool, Saving: saving}},
				Days: []adminapi.DaySaving{{Date: text, Saving: saving}}, Conversations: saving,
			},
			[]adminapi.ServerStatus{
				{GatewayID: adminapi.GatewayID{Gateway: text}, Name: text, State: "unhealthy", LastError: text},
				{Name: "up", State: "healthy"},
			},
			text, at),
		&callsPage: &calls{
			Rows: []row{callRow(v, call)}, Blank: callRow(v, new(activity.Call)), Any: true, Last: 7,
			Filters: []filter{{Name: "client", Title: "Client", All: "all clients", Values: []string{text}, Chosen: text}},
		},
		&callPage: newCallView(call, []original{whole}),
		&originalPage: &wholeText{Original: adminapi.Original{ID: text, Chars: 52310, Text: text},
			Call: v.Link("/calls/7"), More: 1},
		{name: "error"}: failure{http.StatusNotFound, text},
	})
	return all
}

// skeleton returns the elements of a page with the names of their attributes.
func skeleton(t *testing.T, rendered string) (all []string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(rendered))
	if err != nil {
		t.Fatal(err)
	}
	for node := range root.Descendants() {
		if node.Type == html.CommentNode {
			all = append(all, "comment")
		}
		if node.Type != html.ElementNode {
			continue
		}
		element := node.Data
		for _, a := range node.Attr {
			element += " " + a.Key
			switch {
			case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
				t.Errorf("<%s> has %s, which the security policy forbids", node.Data, a.Key)
			case slices.Contains([]string{"href", "src", "action", "formaction"}, a.Key) && !strings.HasPrefix(a.Val,
				"/console/") && !strings.HasPrefix(a.Val, "#"):
				t.Errorf("<%s> links to %s", node.Data, a.Val)
			}
		}
		if node.Data == "style" || node.Data == "script" && node.FirstChild != nil {
			t.Errorf("the page has an inline <%s>, which the security policy forbids", node.Data)
		}
		all = append(all, element)
	}
	return all
}

// TestHostileTexts checks that no text of a client or server becomes an element or attribute.
func TestHostileTexts(t *testing.T) {
	v := newTestRequest("/calls/7")
	plain, tokens := map[string][]string{}, map[string]int{}
	for p, data := range fixtures(v, "plain") {
		page := render(t, v, *p, data)
		plain[p.name], tokens[p.name] = skeleton(t, page), strings.Count(page, v.Token)
	}
	for _, text := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`,
		`</title></textarea></select></pre></template><b>`,
		`javascript:alert(1)`, `{{.Request.Token}}`, "\u202egnp.exe\u2066", "a\nb\r\n\tc", "\x00\xff\xfe", `--><!-- `,
		`&lt;b&gt;`, `//evil.example/`, `../../..`,
		strings.Repeat("w", 5000), strings.Repeat("<", 2000),
	} {
		for p, data := range fixtures(v, text) {
			page := render(t, v, *p, data)
			if got := skeleton(t, page); !slices.Equal(got, plain[p.name]) {
				t.Errorf("page %s has other elements with %.60q:\n%s", p.name, text, page)
			}
			if text == `{{.Request.Token}}` && strings.Count(page, v.Token) != tokens[p.name] {
				t.Errorf("page %s executes templates in texts", p.name)
			}
		}
	}
}

// TestOverviewOfStore checks how the overview shows the state of the store.
func TestOverviewOfStore(t *testing.T) {
	const address, cause = "redis://127.0.0.1:6379", "connection refused"
	overview := func(store *mcpstore.Status) string {
		now := adminapi.Overview{Gateways: []adminapi.GatewayStatus{{Name: "local"}}, Store: store}
		return render(t, newTestRequest("/"), overviewPage, newOverview(now, adminapi.Savings{}, nil, "", time.Now()))
	}
	without := overview(nil)
	up := overview(&mcpstore.Status{Engine: "redis", Address: address, Up: true})
	full := overview(&mcpstore.Status{Engine: "redis", Address: address, Up: true, Full: true})
	down := overview(&mcpstore.Status{Engine: "redis", Address: address, Error: cause})
	was := overview(&mcpstore.Status{Engine: "redis", Address: address, Up: true, Outages: 1, LastError: cause})
	if strings.Contains(without, "replicas") {
		t.Errorf("without a store:\n%s", without)
	}
	if !strings.Contains(up, address) || strings.Contains(up, "is down") || strings.Contains(up, "is full") {
		t.Errorf("up:\n%s", up)
	}
	if !strings.Contains(full, "is full") || strings.Contains(full, "is down") {
		t.Errorf("full:\n%s", full)
	}
	if !strings.Contains(was, "since the store was opened, the last: <bdi>"+cause) || strings.Contains(was, "is down") {
		t.Errorf("up again:\n%s", was)
	}
	if !strings.Contains(down, address) || !strings.Contains(down, "is down: <bdi>"+cause) {
		t.Errorf("down:\n%s", down)
	}
}

// TestEmptyPages checks that empty pages say what to do.
func TestEmptyPages(t *testing.T) {
	v := newTestRequest("/")
	none := newOverview(adminapi.Overview{}, adminapi.Savings{}, nil, "", time.Now())
	for _, test := range []struct {
		p    page
		data any
		want []string
	}{
		{overviewPage, none, []string{"No gateway", "mcp_gateway {"}},
		{overviewPage, newOverview(adminapi.Overview{Gateways: []adminapi.GatewayStatus{{Name: "local"}}},
			adminapi.Savings{}, nil, "", time.Now()), []string{"No calls yet", `href="/console/connect"`,
			`href="/console/tools"`}},
		{callsPage, &calls{Blank: callRow(v, new(activity.Call))}, []string{"No calls yet", `href="/console/connect"`}},
		{callsPage, &calls{Blank: callRow(v, new(activity.Call)), Any: true}, []string{"No matching calls"}},
		{callPage, newCallView(new(activity.Call), nil), []string{"record on"}},
	} {
		page := render(t, v, test.p, test.data)
		skeleton(t, page)
		for _, want := range test.want {
			if !strings.Contains(page, want) {
				t.Errorf("empty page %s does not contain %q:\n%s", test.p.name, want, page)
			}
		}
	}
	if strings.Contains(render(t, v, overviewPage, none), "about") {
		t.Error("the page shows money without a price")
	}
}

// applyPatch returns a page after a patch, as console.js applies it.
func applyPatch(t *testing.T, page string, p patch) string {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for node := range root.Descendants() {
		if node.Type != html.ElementNode {
			continue
		}
		i := slices.IndexFunc(node.Attr, func(a html.Attribute) bool { return a.Key == "id" })
		if i < 0 {
			continue
		}
		id := node.Attr[i].Val
		if text, changed := p.Text[id]; changed {
			for child := node.FirstChild; child != nil; child = node.FirstChild {
				node.RemoveChild(child)
			}
			node.AppendChild(&html.Node{Type: html.TextNode, Data: text})
		}
		for i, a := range node.Attr {
			if value, changed := p.Set[id][a.Key]; changed {
				node.Attr[i].Val = value
			}
		}
	}
	var b bytes.Buffer
	if err := html.Render(&b, root); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestOverviewIsKeptUpToDate checks that a patched page is equal to a fresh one.
func TestOverviewIsKeptUpToDate(t *testing.T) {
	v := newTestRequest("/")
	add := func(received int64) {
		activity.Process.Add(&activity.Call{
			Gateway: "local", Client: "ann", Server: "files", Method: "tools/call", Name: fmt.Sprintf("read_%d", received),
			Outcome:  "ok",
			Received: received, Sent: min(received, 100), CutChars: int(max(0, received-100)),
		})
	}
	read := func() string {
		t.Helper()
		data, err := showOverview(v)
		if err != nil {
			t.Fatal(err)
		}
		return render(t, v, page{name: "overview"}, data)
	}
	add(1000)
	current, next := read(), overviewPage.live(v)
	for i := range 20 {
		add(int64(1000 * i)) // some calls are of a new tool, and some change the order of the tools
		for {
			fresh := read()
			change, err := next()
			if err != nil {
				t.Fatal(err)
			}
			if change.Reload {
				t.Fatalf("after %d calls, the page needs a reload", i)
			}
			current = applyPatch(t, current, change)
			if read() != fresh {
				continue // something else changed meanwhile, such as the rate of calls
			}
			if want := applyPatch(t, fresh, patch{}); current != want {
				t.Fatalf("got %s\nwant %s", current, want)
			}
			break
		}
	}
}

// TestCallsAreKeptUpToDate checks that the stream of calls adds each matching row of a fresh page
// once.
func TestCallsAreKeptUpToDate(t *testing.T) {
	add := func(client, outcome string) {
		activity.Process.Add(&activity.Call{Gateway: "local", Client: client, Server: "files", Method: "tools/call",
			Name: "read", Outcome: outcome})
	}
	show := func(path string) *calls {
		t.Helper()
		data, err := showCalls(newTestRequest(path))
		if err != nil {
			t.Fatal(err)
		}
		return data.(*calls)
	}
	add("zoe", "error")
	add("zoe", "ok")
	for _, path := range []string{"/calls", "/calls?client=zoe", "/calls?client=zoe&outcome=failed",
		"/calls?client=stranger", "/calls?tool=read&server=files", "/calls?gateway=local", "/calls?gateway=other"} {
		before := show(path)
		v := newTestRequest(path)
		live := layoutData{v, &callsPage, before}.Live()
		next := followCalls(newTestRequest(strings.TrimPrefix(live, "/console")))
		rows := before.Rows
		for range 3 {
			add("zoe", "error")
			add("zoe", "ok")
			add("ben", "canceled")
			change, err := next()
			if err != nil {
				t.Fatal(err)
			}
			rows = append(change.Rows, rows...)
		}
		want := show(path).Rows
		if rows = rows[:min(len(rows), shownCalls)]; !reflect.DeepEqual(rows, want) {
			t.Errorf("%s: rows %+v, want %+v", live, rows, want)
		}
		if change, err := next(); err != nil || !change.isEmpty() {
			t.Errorf("%s: without calls: change %+v, %v", live, change, err)
		}
	}

	failed := show("/calls?client=zoe&outcome=failed")
	for _, row := range failed.Rows {
		if row.Class != "bad" || row.Cells[1] != "zoe" || row.Cells[4] != "error" {
			t.Errorf("%+v does not match the filter", row)
		}
	}
	if len(failed.Rows) == 0 {
		t.Error("no call matches the filter")
	}
	if other := show("/calls?gateway=other&server=files"); len(other.Rows) > 0 {
		t.Errorf("calls of another gateway match: %+v", other.Rows)
	}
	for _, filter := range failed.Filters {
		want := map[string]string{"gateway": "local", "client": "zoe", "server": "files", "tool": "read",
			"outcome": "failed"}[filter.Name]
		if !slices.Contains(filter.Values, want) || !slices.IsSorted(filter.Values) {
			t.Errorf("filter %s offers %q, want %q among them", filter.Name, filter.Values, want)
		}
	}
}

// TestResultTexts checks the texts of results of all methods.
func TestResultTexts(t *testing.T) {
	for _, test := range []struct{ name, result, want string }{
		{"no result", ``, ""},
		{"a tool result", `{"content":[{"type":"text","text":"a"},{"type":"image","mimeType":"image/png","data":"AAAA"},` +
			`{"type":"resource","resource":{"uri":"x","text":"b"}}]}`, "a|image, image/png, 3 B|b"},
		{"a prompt", `{"messages":[{"role":"user","content":{"type":"text","text":"a"}}]}`, "a"},
		{"a resource", `{"contents":[{"uri":"x","text":"a"},{"uri":"y","mimeType":"application/pdf","blob":"AAAA"}]}`,
			"a|application/pdf, 3 B"},
		{"an error", `{"code":-32000,"message":"no"}`, "error: no"},
		{"a truncated result", `"{\"content\": … (90000 bytes)"`,
			`the beginning of the result: {"content": … (90000 bytes)`},
		{"an unexpected form", `{"content":7}`, ""},
	} {
		var got []string
		for _, text := range resultTexts(json.RawMessage(test.result)) {
			said := text.Kind
			for _, p := range text.Parts {
				if said != "" {
					said += ": "
				}
				said += p.Text
			}
			got = append(got, said)
		}
		if strings.Join(got, "|") != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestDifferences checks that a patch has all differences it can, and otherwise reloads the page.
func TestDifferences(t *testing.T) {
	const page = `<main id="main" class="a"><p id="text">old</p><p id="mixed">a <b>b</b></p><input id="in" ` +
		`value="1">after<path id="p" d="M0"/><i id="none"></i><p class="x">fixed</p></main>`
	read := func(page string) *snapshot {
		t.Helper()
		m, err := readSnapshot(strings.NewReader(page))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, test := range []struct {
		name, old, new string
		want           patch
	}{
		{"no change", "", "", patch{}},
		{"a text", "old", "new &amp; <", patch{Text: map[string]string{"text": "new & <"}}},
		{"an empty text", `"none"></i>`, `"none">x</i>`, patch{Text: map[string]string{"none": "x"}}},
		{"an attribute", `"M0"`, `"M1"`, patch{Set: map[string]map[string]string{"p": {"d": "M1"}}}},
		{"an attribute of a void element", `value="1"`, `value="2"`,
			patch{Set: map[string]map[string]string{"in": {"value": "2"}}}},
		{"a class", `class="a"`, `class="b"`, patch{Set: map[string]map[string]string{"main": {"class": "b"}}}},
		{"a text next to elements", "a <b>", "c <b>", patch{Reload: true}},
		{"a text of an element without an id", "fixed", "moved", patch{Reload: true}},
		{"a class of an element without an id", `class="x"`, `class="y"`, patch{Reload: true}},
		{"a text after a void element", "after", "later", patch{Reload: true}},
		{"an element in a text", "old", "<b>old</b>", patch{Reload: true}},
		{"an id", `id="text"`, `id="other"`, patch{Reload: true}},
		{"a new attribute", `id="p"`, `id="p" x="1"`, patch{Reload: true}},
		{"a removed element", `<i id="none"></i>`, "", patch{Reload: true}},
	} {
		got := read(strings.Replace(page, test.old, test.new, 1)).since(read(page))
		if len(got.Text) == 0 {
			got.Text = nil
		}
		if len(got.Set) == 0 {
			got.Set = nil
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}
