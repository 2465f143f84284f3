package mcpconsole

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/focus"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsoncut"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolschema"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

// pageFixtures returns data for the pages of servers, tools, conversations and connections, with a
// text in all places that clients and servers determine.
func pageFixtures(text string) map[*page]any {
	at := time.Date(2026, 11, 17, 20, 21, 14, 0, time.UTC)
	quoted, _ := json.Marshal(text)
	three := 3
	id := adminapi.GatewayID{Gateway: text, Path: text}
	server := adminapi.ServerStatus{
		GatewayID: id, Name: text, Aliases: []string{text}, From: text, URL: text, Command: text,
		State:     "unhealthy",
		LastError: text, FailedAt: at, Tried: text, TriedPath: text, Since: at, Failures: 2, Restarts: 1, Sessions: 2,
		Latency: &activity.Latency{Calls: 7, P50: 0.01, P95: 0.2, P99: 3}, Tools: &three, Prompts: &three, Resources: &three,
		ToolsChanged: 2,
		Children: []adminapi.ChildStatus{{Address: text, Status: stdio.Status{
			PID: 7, State: stdio.State(text), LastError: text, FailedAt: at, Stderr: []string{text, text}, Since: at, Era: text,
		}}},
		Upstreams: []adminapi.UpstreamStatus{{Address: text, Requests: 1}},
		Login:     &login.Status{State: "per_client", Issuer: text, Scopes: []string{text}, Until: at, Error: text},
		LoginURL:  text,
	}
	change := toolpin.Change{
		Tool: text, Seen: text, Pinned: text, At: at, Before: json.RawMessage(`{}`),
		After: slices.Concat([]byte(`{"description":`), quoted, []byte(`}`)),
	}
	lost := toolpin.Change{Tool: text, Seen: text, At: at, Lost: true, After: change.After}
	tool := adminapi.ToolStatus{
		GatewayID: id, Server: text, Name: text, Original: text, Title: text, Description: text, Chars: 100,
		Tokens:      30,
		FocusTokens: 5, Clients: []string{text},
	}
	definition := fmt.Appendf(nil,
		`{"name":%[1]s,"description":%[1]s,"outputSchema":{"description":%[1]s},"inputSchema":{"required":["n"],"properties":{
		"n":{"type":"number","description":%[1]s},"b":{"type":"boolean","description":%[1]s},"e":{"enum":[%[1]s],"description":%[1]s},"j":{"type":"array","description":%[1]s},
		"s":{"type":"string","description":%[1]s,"default":%[1]s}},"additionalProperties":true}}`, quoted)
	result := fmt.Appendf(nil, `{"isError":true,"structuredContent":{"a":%[1]s},"content":[{"type":"text",`+
		`"text":%[1]s},{"type":%[1]s,"mimeType":%[1]s}]}`, quoted)
	entered := url.Values{givenName: {text}, fieldPrefix + "s": {text}, fieldPrefix + "j": {text}, fieldPrefix +
		"e": {string(quoted)}}
	return map[*page]any{
		&serversPage: newServersView([]adminapi.ServerStatus{server}, []adminapi.FileStatus{
			{GatewayID: id, File: text, Servers: []string{text, text}, Loaded: at, Notes: []string{text},
				Error: text},
		}),
		&serverPage: newServerView(&server, []adminapi.ToolChange{
			{Gateway: text, Server: text, Change: change}, {Gateway: text, Server: text, Change: lost},
		}, text),
		&toolsPage: func() any {
			view := newToolsView(&adminapi.ToolListing{Tools: []adminapi.ToolStatus{tool}, Failed: []adminapi.ToolFailure{
				{GatewayID: id, Server: text, Code: text, Error: text},
			}}, toolFilter{Server: text, Gateway: text, Client: text})
			view.Gateways, view.Clients, view.More = []string{text, text}, []string{text}, 1
			return view
		}(),
		&toolPage: func() any {
			decision := &adminapi.ItemDecision{Action: text, Rule: text, Depends: true}
			detail := &adminapi.ToolDetail{ToolStatus: tool, Annotations: text, Definition: definition, Decision: decision}
			view := buildToolView(detail, []string{text}, text, entered)
			view.Tried = &trial{Panes: []pane{newPane("a", result), newPane("b", result)}}
			return view
		}(),
		&conversationsPage: newConversationsView([]activity.Route{{
			Route: text, Requests: 3, TokensBefore: 100, TokensAfter: 40, Moves: []activity.Move{{At: at, Results: 2}},
		}}),
		&connectPage: newConnectView([]adminapi.GatewayStatus{
			{Name: text, Admits: text, Auth: true, URLs: []string{documentedURL, "https://example.com/mcp"}},
		}, text),
	}
}

func TestEmptyPagesOfServers(t *testing.T) {
	v := newTestRequest("/")
	for _, tt := range []struct {
		p    page
		data any
		want string
	}{
		{serversPage, newServersView(nil, nil), "No servers yet"},
		{serverPage, newServerView(new(adminapi.ServerStatus), nil, ""), "not contacted yet"},
		{toolsPage, newToolsView(new(adminapi.ToolListing), toolFilter{}), "No server lists a tool"},
		{toolsPage, newToolsView(&adminapi.ToolListing{Tools: make([]adminapi.ToolStatus, 3)}, toolFilter{Text: "x"}),
			"Show all 3"},
		{toolPage, buildToolView(new(adminapi.ToolDetail), nil, "", nil), "The schema does not list them."},
		{conversationsPage, newConversationsView(nil), "tool_result_mask {"},
		{connectPage, newConnectView(nil, ""), "No gateway has an address"},
		{connectPage, newConnectView([]adminapi.GatewayStatus{{URLs: []string{"unix//run/x.sock /mcp"}}}, ""),
			"No gateway has an address"},
	} {
		page := render(t, v, tt.p, tt.data)
		skeleton(t, page)
		if !strings.Contains(page, tt.want) {
			t.Errorf("page %s does not contain %q:\n%s", tt.p.name, tt.want, page)
		}
	}
}

// Read-only pages have no forms that change something.
func TestReadOnlyPages(t *testing.T) {
	v := newTestRequest("/")
	for _, readOnly := range []bool{false, true} {
		v.ReadOnly = readOnly
		for p, data := range pageFixtures("x") {
			forms := strings.Count(render(t, v, *p, data), `method="post"`)
			changes := !readOnly && (p == &serverPage || p == &toolPage)
			if changes != (forms > 0) {
				t.Errorf("read-only %v: page %s has %d forms", readOnly, p.name, forms)
			}
		}
	}
}

// Read-only pages have no login link. The link has no ticket, so that the page does not change.
func TestLoginLink(t *testing.T) {
	v := newTestRequest("/")
	for _, v.ReadOnly = range []bool{false, true} {
		var pages []string
		for _, ticket := range []string{"1", "2"} {
			s := adminapi.ServerStatus{Name: "a b", Login: &login.Status{State: "required"},
				LoginURL: "https://gateway.test/login?ticket=" + ticket}
			pages = append(pages, render(t, v, serverPage, newServerView(&s, nil, "")))
		}
		if links := strings.Contains(pages[0], `"/console/servers/a%20b/login"`); links == v.ReadOnly ||
			pages[0] != pages[1] {
			t.Errorf("read-only %t: got %s", v.ReadOnly, pages[0])
		}
	}
}

// The login link redirects to the login page of the gateway, with a ticket.
func TestLogIn(t *testing.T) {
	const gateway = `
	mcp_gateway /far* {
		name far
		mcp_path /far
		rpc_path /farrpc
		server remote http://127.0.0.1:1/mcp {
			oauth
		}
	}`
	for _, tt := range []struct {
		console, path string
		status        int
		to            string
	}{
		{"mcp_console", "/servers/remote/login?gateway=far", http.StatusSeeOther, "/far/"},
		{"mcp_console", "/servers/sample/login", http.StatusConflict, ""},
		{"mcp_console", "/servers/none/login", http.StatusNotFound, ""},
		{"mcp_console {\n read_only on\n }", "/servers/remote/login?gateway=far", http.StatusForbidden, ""},
	} {
		t.Run(http.StatusText(tt.status), func(t *testing.T) {
			s := serve(t, tt.console+gateway)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/console"+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, body := s.do(r)
			to := res.Header.Get("Location")
			if res.StatusCode != tt.status || !strings.Contains(to, tt.to) || (tt.to != "") != strings.Contains(to, "ticket=") {
				t.Errorf("got %d %s: %s", res.StatusCode, to, body)
			}
		})
	}
}

// Only the names of actions have a notice: the URL could contain any text.
func TestNotices(t *testing.T) {
	for _, did := range []string{"", "You won", "<b>", "Restart"} {
		if got := newServerView(new(adminapi.ServerStatus), nil, did).Notice; got != "" {
			t.Errorf("%q: notice %q, want none", did, got)
		}
	}
	for _, a := range serverActions {
		name := a.pattern[strings.LastIndexByte(a.pattern, '/')+1:]
		if newServerView(new(adminapi.ServerStatus), nil, name).Notice == "" {
			t.Errorf("%s has no notice", name)
		}
	}
}

func TestChangesOfManyTools(t *testing.T) {
	changes := make([]adminapi.ToolChange, maxChanges+5)
	changes = append(changes, adminapi.ToolChange{Server: "other"}, adminapi.ToolChange{Gateway: "other"})
	if view := newServerView(new(adminapi.ServerStatus), changes, ""); len(view.Changes) != maxChanges || view.More != 5 {
		t.Errorf("%d changes shown, %d more", len(view.Changes), view.More)
	}
}

func TestToolsFilter(t *testing.T) {
	listing := &adminapi.ToolListing{Tools: []adminapi.ToolStatus{
		{GatewayID: adminapi.GatewayID{Gateway: "a"}, Server: "files", Name: "files__read", Title: "Read a File", Tokens: 30},
		{GatewayID: adminapi.GatewayID{Gateway: "a"}, Server: "search", Name: "search__find",
			Description: "Finds a FILE", Tokens: 70, FocusTokens: 5},
		{GatewayID: adminapi.GatewayID{Gateway: "b"}, Name: "recover_observation", Original: "x", Tokens: 20},
	}}
	for _, tt := range []struct {
		asked toolFilter
		want  string
	}{
		{toolFilter{}, "files__read search__find recover_observation"},
		{toolFilter{Text: "file"}, "files__read search__find"},
		{toolFilter{Text: " read  a "}, "files__read"},
		{toolFilter{Text: "SEARCH"}, "search__find"},
		{toolFilter{Text: "file", Server: "search"}, "search__find"},
		{toolFilter{Text: "nothing"}, ""},
	} {
		view := newToolsView(listing, tt.asked)
		var got []string
		for _, tool := range view.Tools {
			got = append(got, tool.Name)
		}
		if strings.Join(got, " ") != tt.want || view.Found != len(got) || view.Count != 3 {
			t.Errorf("%+v: found %q, want %q", tt.asked, got, tt.want)
		}
		if got := fmt.Sprint(view.Sums); got != "[{a 2 100 5} {b 1 20 0}]" {
			t.Errorf("sums %s", got)
		}
	}
	if got := newToolsView(listing, toolFilter{}).Share(toolRow{&listing.Tools[0]}); got != "30 %" {
		t.Errorf("share %s", got)
	}
}

func TestManyTools(t *testing.T) {
	listing := &adminapi.ToolListing{Tools: make([]adminapi.ToolStatus, 1000)}
	for _, tt := range []struct {
		asked       toolFilter
		shown, more int
	}{{toolFilter{}, maxTools, 1000 - maxTools}, {toolFilter{All: true}, 1000, 0}} {
		if view := newToolsView(listing, tt.asked); len(view.Tools) != tt.shown || view.More != tt.more ||
			view.Found != 1000 {
			t.Errorf("%+v: %d tools, %d more, of %d", tt.asked, len(view.Tools), view.More, view.Found)
		}
	}
}

func TestRiskyTools(t *testing.T) {
	for annotations, want := range map[string]bool{
		"": true, "destructive open_world": true, "read_only": false, "read_only open_world": false, "idempotent": true,
		"read_only destructive": true,
	} {
		if isRisky(annotations) != want {
			t.Errorf("%q: risky %v, want %v", annotations, !want, want)
		}
		view := buildToolView(&adminapi.ToolDetail{Annotations: annotations}, nil, "", nil)
		page := render(t, newTestRequest("/"), toolPage, view)
		if asks := strings.Contains(page, `name="sure" value="yes" required`); asks != want {
			t.Errorf("%q: the form requires confirmation: %v", annotations, asks)
		}
		// Without a gateway, the call fails in any case.
		if refused := strings.HasPrefix(view.try(newTestRequest("/")).Error, "Confirm"); refused != want {
			t.Errorf("%q: an unconfirmed call is refused: %v", annotations, refused)
		}
	}
}

func TestRoutes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		route activity.Route
		want  string
	}{
		{"a provider that reports usage", activity.Route{
			BytesBefore: 8e6, BytesAfter: 4e6, TokensBefore: 2e6, TokensAfter: 5e5, Usage: activity.Usage{Input: 5e5,
				Cached: 4e5}, Cost: 30, CostBefore: 120,
		}, "2.0 M tokens, 500 k tokens, 25%, The model got 25 % of what clients sent, 80 %, 25 %"},
		{"a provider that does not report usage", activity.Route{BytesBefore: 8e6, BytesAfter: 4e6},
			"8.0 MB, 4.0 MB, 50%, The model got 50 % of what clients sent, –, –"},
		{"no requests", activity.Route{}, "0 B, 0 B, 0%, The model got 0 % of what clients sent, –, –"},
	} {
		r := routeView{tt.route}
		if got := strings.Join([]string{r.Before(), r.After(), r.Part(), r.Label(), r.Hits(), r.CostShare()},
			", "); got != tt.want {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
}

// fences matches code blocks in Markdown.
var fences = regexp.MustCompile("(?s)```[a-z]*\n(.*?)\n```")

// The console shows the settings of docs/clients.md for each client.
func TestSettingsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		name, body, _ := strings.Cut(section, "\n")
		documented[name] = body
	}
	var names []string
	for _, row := range regexp.MustCompile(`(?m)^\| \[([^]]+)\]\(#`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, row[1])
	}
	for _, token := range []bool{false, true} {
		var got []string
		for _, settings := range settingsOf(documentedURL, token) {
			got = append(got, settings.Name)
			if settings.Text == "" || settings.Code == "" {
				t.Errorf("%s: %+v", settings.Name, settings)
			}
			if settings.Code == documentedURL {
				continue
			}
			if !slices.ContainsFunc(fences.FindAllStringSubmatch(documented[settings.Name], -1), func(code []string) bool {
				return strings.Contains("\n"+code[1], "\n"+settings.Code)
			}) {
				t.Errorf("docs/clients.md has no such settings for %s:\n%s", settings.Name, settings.Code)
			}
			if asks := strings.Contains(settings.Code, "TOKEN"); asks != token && settings.Name != "Claude Desktop" {
				t.Errorf("%s: settings have a token: %v", settings.Name, asks)
			}
		}
		if !slices.Equal(got, names) {
			t.Errorf("got settings for %q, docs/clients.md has %q", got, names)
		}
	}
}

func TestSettingsForAnAddress(t *testing.T) {
	gateways := []adminapi.GatewayStatus{
		{Name: "a", URLs: []string{"unix//x /mcp", "http://127.0.0.1:8080/mcp", "https://a.example/mcp"}},
		{Name: "b", Auth: true, URLs: []string{`https://b.example/"m c"`}},
	}
	for asked, want := range map[string]string{
		"": "http://127.0.0.1:8080/mcp", "https://a.example/mcp": "https://a.example/mcp",
		"https://evil.example/mcp":      "http://127.0.0.1:8080/mcp",
		"https://b.example/%22m%20c%22": "https://b.example/%22m%20c%22",
	} {
		view := newConnectView(gateways, asked)
		if view.Chosen.URL != want || len(view.Addresses) != 3 {
			t.Errorf("%q: %+v", asked, view.Chosen)
		}
		for _, settings := range view.Clients {
			if !strings.Contains(settings.Code, want) && settings.Name != "Claude Desktop" {
				t.Errorf("%q: settings of %s: %s", asked, settings.Name, settings.Code)
			}
		}
	}
}

// get returns the status and text of a page of the console.
func (s *site) get(path string) (int, string) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.url+"/console"+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	res, page := s.do(r)
	return res.StatusCode, page
}

// send sends a form as a browser does.
func (s *site) send(path string, values url.Values) (*http.Response, string) {
	s.Helper()
	values.Set("token", s.token(http.Header{}))
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+"/console"+path,
		strings.NewReader(values.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	r.Header = http.Header{"Origin": {s.url}, "Content-Type": {formType}}
	return s.do(r)
}

// oddGateway adds a gateway with rules and a name that must be escaped.
const oddGateway = `mcp_console
	mcp_gateway /odd* {
		name "odd & <b>50%</b>"
		mcp_path /odd
		rpc_path /oddrpc
		separator __
		client alice {
			token aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
			deny sample::read_image
			confirm sample::echo
			allow sample::*
		}
		server sample {
			mcp_sample
		}
		server dead http://127.0.0.1:1/mcp
	}`

// TestPagesOfAGateway checks pages with the data of a running gateway.
func TestPagesOfAGateway(t *testing.T) {
	s := serve(t, oddGateway)
	odd := url.Values{"gateway": {"odd & <b>50%</b>"}}.Encode()
	for _, tt := range []struct {
		name, path string
		status     int
		want       []string
		not        string
	}{
		{"tools of all gateways", "/tools", 200, []string{"of the gateway", "sample__echo",
			"dead</a> could not list its tools"}, "<b>50%"},
		{"tools of one gateway", "/tools?q=image&" + odd, 200, []string{"sample__read_image", "no client"},
			"sample__echo</bdi>"},
		{"tools of a client", "/tools?client=alice&" + odd, 200, []string{"sample__echo"}, "sample__read_image</bdi>"},
		{"an unknown client", "/tools?client=stranger", 404, []string{"stranger"}, ""},
		{"a tool", "/tools/sample__echo?" + odd, 200, []string{`name="argument.text"`, "<code>text</code>"}, ""},
		{"arguments in the URL", "/tools/sample__echo?argument.text=evil&arguments=evil&" +
			odd, 200, []string{`name="argument.text"`}, "evil"},
		{"a tool that needs confirmation", "/tools/sample__echo?client=alice&" + odd, 200, []string{`badge warn">confirm`,
			"sample::echo"}, ""},
		{"a tool that a client may not use", "/tools/sample__read_image?client=alice&" + odd, 200,
			[]string{`badge bad">deny`, "does not see the tool"}, ""},
		{"a tool of several gateways", "/tools/sample__echo", 409, []string{"several gateways match"}, ""},
		{"an unknown tool", "/tools/sample__ech%2Fo?" + odd, 404, []string{"sample__ech/o"}, ""},
		{"a server", "/servers/dead?" + odd, 200, []string{"http://127.0.0.1:1/mcp", `id="state"`}, ">Restart<"},
		{"an unknown server", "/servers/a%2Fb%3Fc?" + odd, 404, []string{"a/b?c"}, ""},
		{"servers", "/servers", 200, []string{"/console/servers/dead?gateway=odd&#43;%26&#43;%3Cb%3E50%25%3C%2Fb%3E",
			"/console/servers/sample?gateway=%2Fmcp"}, "<b>50%"},
		{"a server of the gateway without a name", "/servers/sample?gateway=%2Fmcp", 200,
			[]string{"/console/tools?gateway=%2Fmcp&amp;server=sample", `name="gateway" value="/mcp"`}, ""},
		{"tools of the gateway without a name", "/tools?gateway=%2Fmcp", 200,
			[]string{`<option value="/mcp" selected>`, "/console/tools/sample__echo?gateway=%2Fmcp"}, "odd__"},
		{"a tool of the gateway without a name", "/tools/sample__echo?gateway=%2Fmcp", 200,
			[]string{"/console/servers/sample?gateway=%2Fmcp"}, ""},
		{"settings", "/connect", 200, []string{s.url + "/mcp"}, ""},
		{"settings with a token", "/connect?address=" + url.QueryEscape(s.url+"/odd"), 200, []string{"GATEWAY_TOKEN"}, ""},
		{"conversations", "/conversations", 200, []string{"tool_result_mask"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, page := s.get(tt.path)
			skeleton(t, page)
			if status != tt.status || tt.not != "" && strings.Contains(page, tt.not) {
				t.Errorf("got %d %s", status, page)
			}
			for _, want := range tt.want {
				if !strings.Contains(page, want) {
					t.Errorf("no %q in %s", want, page)
				}
			}
		})
	}
}

// Actions on servers use the admin API, and the next page shows the outcome.
func TestServerActions(t *testing.T) {
	s := serve(t, oddGateway)
	const name = "odd & <b>50%</b>"
	for _, tt := range []struct {
		path, gateway string
		values        url.Values
		status        int
		want          string
	}{
		{"/servers/sample/check", name, nil, 303, "Checked just now"},
		{"/servers/dead/check", name, nil, 303, "connection refused"},
		{"/servers/sample/refresh", name, nil, 303, "clients notified"},
		{"/servers/sample/accept", name, url.Values{"all": {"yes"}}, 303, "Definition accepted"},
		{"/servers/sample/accept", name, url.Values{"tool": {"echo"}, "seen": {"0"}}, 404, "has not changed"},
		{"/servers/sample/accept", name, nil, 400, "tool: missing"},
		{"/servers/sample/restart", name, nil, 409, "has no child process"},
		{"/servers/sample/logout", name, nil, 409, "has no oauth"},
		{"/servers/sample/check", "/mcp", nil, 303, "Checked just now"},
		{"/servers/sample/check", "", nil, 409, "several gateways match"},
		{"/servers/none%2F/check", name, nil, 404, "none/"},
	} {
		t.Run(tt.path, func(t *testing.T) {
			values := url.Values{"gateway": {tt.gateway}}
			for name, value := range tt.values {
				values[name] = value
			}
			res, page := s.send(tt.path, values)
			if res.StatusCode == http.StatusSeeOther {
				_, page = s.get(strings.TrimPrefix(res.Header.Get("Location"), "/console"))
			}
			if res.StatusCode != tt.status || !strings.Contains(page, tt.want) {
				t.Errorf("got %d %s", res.StatusCode, page)
			}
		})
	}
	if lines := s.logged(`"action":"refresh"`); len(lines) != 1 || !strings.Contains(lines[0], `"mcp_server":"sample"`) {
		t.Errorf("logged %q", lines)
	}
}

// The page of a tool calls it once, and shows the result before and after masking.
func TestTryATool(t *testing.T) {
	s := serve(t, oddGateway)
	const name = "odd & <b>50%</b>"
	for _, tt := range []struct {
		what, tool string
		values     url.Values
		want, not  string
	}{
		{"a text", "sample__echo", url.Values{"argument.text": {"<i>hi</i>\r\nyou"}, "sure": {"yes"}},
			"&lt;i&gt;hi&lt;/i&gt;\nyou</div>", "<i>"},
		{"the form keeps the values", "sample__echo", url.Values{"argument.text": {"\r\nsecond"}, "sure": {"yes"}},
			"\n\nsecond</textarea>", ""},
		{"a long result", "sample__read_log", url.Values{"sure": {"yes"}}, `As the server sent it`, ""},
		{"a client that may not use the tool", "sample__read_image", url.Values{"client": {"alice"}, "sure": {"yes"}},
			`role="alert"`,
			"As the agent gets it"},
		{"a read-only tool without confirmation", "sample__echo", url.Values{"argument.text": {"x"}}, "x</div>",
			`role="alert"`},
	} {
		t.Run(tt.what, func(t *testing.T) {
			values := url.Values{"gateway": {name}}
			for name, value := range tt.values {
				values[name] = value
			}
			res, page := s.send("/tools/"+tt.tool, values)
			skeleton(t, page)
			if res.StatusCode != http.StatusOK || !strings.Contains(page, tt.want) || tt.not != "" && strings.Contains(page,
				tt.not) {
				t.Errorf("got %d %s", res.StatusCode, page)
			}
		})
	}
}

// A patched page of servers is equal to a fresh one.
func TestServersAreKeptUpToDate(t *testing.T) {
	s := serve(t, oddGateway)
	for _, tt := range []struct {
		path string
		p    page
		show func(*consoleRequest) (any, error)
	}{
		{"/servers", serversPage, showServers},
		{"/servers?server=dead&gateway=" + url.QueryEscape("odd & <b>50%</b>"), serverPage, showServer},
	} {
		v := newTestRequest(tt.path)
		read := func() string {
			t.Helper()
			data, err := tt.show(v)
			if err != nil {
				t.Fatal(err)
			}
			return render(t, v, page{name: tt.p.name}, data)
		}
		current, next := read(), tt.p.live(v)
		if _, err := next(); err != nil {
			t.Fatal(err)
		}
		s.send("/servers/dead/check", url.Values{"gateway": {"odd & <b>50%</b>"}})
		change, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := applyPatch(t, current, change), applyPatch(t, read(), patch{}); !change.Reload && got != want {
			t.Errorf("%s: got %s\nwant %s", tt.path, got, want)
		}
		if change.isEmpty() {
			t.Errorf("%s: got no change", tt.path)
		}
	}
}

const formSchema = `{"inputSchema":{"required":["text","count"],"properties":{
	"text":{"type":"string"},
	"note":{"type":["string","null"]},
	"count":{"type":"integer","default":3},
	"ratio":{"type":["number","null"]},
	"level":{"enum":["low",2,null]},
	"dry":{"type":"boolean"},
	"list":{"type":"array"},
	"any":{}
}}}`

func TestFormFields(t *testing.T) {
	arguments, open := toolschema.ReadArguments([]byte(formSchema), nil)
	f := newForm(arguments, open, nil)
	var got []string
	for _, field := range f.Fields {
		got = append(got, field.Name+" "+field.Kind)
	}
	if got, want := strings.Join(got, ", "),
		"text text, note text, count number, ratio number, level enum, dry boolean, list json, any json"; got != want ||
		f.Open {
		t.Errorf("%s, open: %v", got, f.Open)
	}
	if got := f.Fields[2].Step() + " " + f.Fields[3].Step() + " " + f.Fields[2].Example(); got != "1 any 3" {
		t.Error(got)
	}
	if got := fmt.Sprint(f.Fields[4].Options()); got != `[{"low" low false} {2 2 false} {null  false}]` {
		t.Error(got)
	}
}

func TestFormOfManyArguments(t *testing.T) {
	f := newForm(make([]toolschema.Argument, maxFields+1), false, nil)
	if len(f.Fields) != 0 || !f.Open {
		t.Errorf("%d fields, open: %v", len(f.Fields), f.Open)
	}
}

func TestFormFill(t *testing.T) {
	arguments, _ := toolschema.ReadArguments([]byte(formSchema), nil)
	for _, tt := range []struct {
		name    string
		open    bool
		entered url.Values
		want    string // the call, or the error
	}{
		{"no values", false, nil, `{"tool":"","texts":{"text":""}}`},
		{"all values", false, url.Values{
			"argument.text": {"a\r\nb"}, "argument.note": {"n"}, "argument.count": {"7"}, "argument.level": {"2"},
			"argument.dry": {"false"}, "argument.list": {"[1]"}, "argument.any": {`"x"`}, "token": {"no argument"},
		}, `{"tool":"","arguments":{"any":"x","level":2},"texts":{"count":"7","dry":"false","list":"[1]","note":"n",` +
			`"text":"a\nb"}}`},
		{"a word instead of JSON", false, url.Values{"argument.any": {"x"}}, "any: must be JSON; put text in quotes"},
		{"additional arguments", true, url.Values{"arguments": {` {"more":1}`}, "argument.text": {"x"}},
			`{"tool":"","arguments":{"more":1},"texts":{"text":"x"}}`},
		{"a closed schema", false, url.Values{"arguments": {`{"more":1}`}, "argument.text": {"x"}},
			`{"tool":"","texts":{"text":"x"}}`},
		{"additional arguments that are not an object", true, url.Values{"arguments": {`[]`}},
			"arguments: must be a JSON object"},
		{"additional arguments that are null", true, url.Values{"arguments": {`null`}}, "arguments: must be a JSON object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, call := newForm(arguments, tt.open, tt.entered), adminapi.ToolCall{}
			got := ""
			if err := f.fill(&call); err != nil {
				got = err.Error()
			} else if text, err := json.Marshal(call); err != nil {
				t.Fatal(err)
			} else {
				got = string(text)
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// Arguments never have the form name of another part of the form.
func TestFormNames(t *testing.T) {
	f := newForm([]toolschema.Argument{{Name: "token"}, {Name: "arguments"}, {Name: "client"}}, true, nil)
	names := map[string]bool{"token": true, givenName: true, "client": true, "sure": true}
	for _, field := range f.Fields {
		names[field.FormName()] = true
	}
	if len(names) != 7 {
		t.Error(slices.Sorted(maps.Keys(names)))
	}
}

// maskText returns a text as a mask shortens it.
func maskText(t *testing.T, text string, policy mask.Policy) string {
	t.Helper()
	var out bytes.Buffer
	message, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "result": map[string]any{"text": text}})
	if err != nil {
		t.Fatal(err)
	}
	m := mask.NewMasker(&out, policy)
	if _, err := m.Write(message); err != nil {
		t.Fatal(err)
	}
	if err := m.End(); err != nil {
		t.Fatal(err)
	}
	var answer struct{ Result struct{ Text string } }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Result.Text
}

// TestGaps uses the real masks, so that their markers and splitGaps agree.
func TestGaps(t *testing.T) {
	const handle = "obs_BrQOO5w4Tf"
	policy := mask.Policy{MaxChars: 100, HeadChars: 60, TailChars: 40}
	kept := policy
	kept.HoldLimit, kept.Save, kept.Hint = 1<<20, func([]byte) string { return handle }, mask.DefaultHint
	var lines strings.Builder
	var items []int
	for i := range 2000 {
		fmt.Fprintf(&lines, "line %d of the log says that all is well\n", i)
		items = append(items, i)
	}
	list, _ := json.Marshal(items)
	cutList, ok := jsoncut.Cutter{MaxChars: 200, Note: " id=" + handle}.Cut(list)
	if !ok {
		t.Fatal("the list was not cut")
	}
	focused, _ := (&focus.Cutter{Goal: "line 1234", MaxChars: 1000, Handle: handle,
		Hint: mask.DefaultHint}).Cut(t.Context(), lines.String())

	for _, test := range []struct {
		name, text   string
		gaps         []string // ends of the descriptions of the first gaps
		handle, left string   // handle of the first gap, and text that is kept
	}{
		{"a whole text", "a text", nil, "", "a text"},
		{"no text", "", nil, "", ""},
		{"head and tail", maskText(t, strings.Repeat("x", 5100), policy), []string{"5,000 characters are missing"}, "",
			strings.Repeat("x", 60) + "\n"},
		{"head and tail with a handle", maskText(t, strings.Repeat("x", 5100), kept),
			[]string{"5,000 characters are missing"},
			handle, "\n" + strings.Repeat("x", 40)},
		{"items", string(cutList), []string{"of 2,000 items are missing"}, handle, ""},
		{"lines", focused, []string{"of 2,000 lines are missing", "lines are missing"}, handle, ""},
		{"one line", "a\n[line 7 left out]\nb", []string{"1 line is missing"}, "", "a\n"},
		{"media", `["... [52000 characters of media left out] ..."]`, []string{"52,000 characters of media are missing"}, "",
			`["`},
		{"a marker with inconsistent numbers",
			"... [KIMI_PROXY_OBSERVATION_MASKED original_chars=10 head=20 tail=0] ...", nil,
			"", "... [KIMI_PROXY_OBSERVATION_MASKED original_chars=10 head=20 tail=0] ..."},
		{"a marker with a number that is too large", "[lines 1-99999999999999999999 left out]", nil, "", ""},
	} {
		parts := splitGaps(test.text)
		var found, left []string
		var whole strings.Builder
		first := ""
		for _, p := range parts {
			whole.WriteString(p.Text)
			if p.Gap == "" {
				left = append(left, p.Text)
				continue
			}
			if len(found) == 0 {
				first = p.Handle
			}
			found = append(found, p.Gap)
		}
		if whole.String() != test.text {
			t.Errorf("%s: the parts join to %q, want %q", test.name, whole.String(), test.text)
		}
		if test.left != "" && !strings.Contains(strings.Join(left, "\x00"), test.left) {
			t.Errorf("%s: kept %q, want %q", test.name, left, test.left)
		}
		if len(test.gaps) == 0 && test.left != "" && !reflect.DeepEqual(left, []string{test.left}) {
			t.Errorf("%s: kept %q, want the whole text", test.name, left)
		}
		if first != test.handle {
			t.Errorf("%s: handle %q, want %q", test.name, first, test.handle)
		}
		for i, want := range test.gaps {
			if i >= len(found) || !strings.HasSuffix(found[i], want) {
				t.Errorf("%s: gaps %q, want %q", test.name, found, test.gaps)
				break
			}
		}
	}
}

// FuzzGaps checks that splitting a text loses no part of it.
func FuzzGaps(f *testing.F) {
	f.Add("a ... [KIMI_PROXY_OBSERVATION_MASKED original_chars=52310 head=2000 tail=2000 id=obs_4kXbZ0aQe7] " +
		"...\n[lines 1-9 left out]")
	f.Add(`"... [298 of 300 items left out id=obs_BrQOO5w4Tf] ..."`)
	f.Fuzz(func(t *testing.T, text string) {
		var whole strings.Builder
		for _, p := range splitGaps(text) {
			whole.WriteString(p.Text)
		}
		if whole.String() != text {
			t.Errorf("the parts join to %q, want %q", whole.String(), text)
		}
	})
}

// The result is that of json.Indent, but costs no more memory than what is shown of it.
func TestIndented(t *testing.T) {
	deep := strings.Repeat("[", 980) + strings.Repeat("1,", 10_000) + "1" + strings.Repeat("]", 980)
	for _, value := range []string{
		`{"a":[1,-2.5e3,{"b":null}],"c":{},"d":[],"":[[]]}`, `7`, `[]`, `"x"`,
		" { \"a\" :\t[ 1 ,\r\n[ ] ] , \"b\":{ } }",
		`["{[,:\"]}\\", " \u00e9é\\\"", ":"]`, `{"a":1`, `<b>`, ``, deep,
		`"` + strings.Repeat("é", shownChars-2) + `"`, `"` + strings.Repeat("\U0001f600", shownChars-1) + `"`,
		`["` + strings.Repeat(`\"`, 3*shownChars) + `"]`, "[" + strings.Repeat("\xff", 2*shownChars),
	} {
		var b bytes.Buffer
		if json.Indent(&b, []byte(value), "", "  ") != nil {
			b.WriteString(value)
		}
		if got, want := indented(json.RawMessage(value)), cut(b.String(), shownChars); got != want {
			t.Errorf("%.80s: got\n%.400s\nwant\n%.400s", value, got, want)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	indented(json.RawMessage(deep))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 { // json.Indent takes 150 MB
		t.Errorf("%d bytes of JSON take %d bytes of memory", len(deep), got)
	}
}

func TestDiffJSON(t *testing.T) {
	for _, tt := range []struct{ name, before, after, want string }{
		{"a description", `{"name":"x","description":"old"}`, `{"name":"x","description":"new"}`,
			" {\n   \"name\": \"x\",\n-  \"description\": \"old\"\n+  \"description\": \"new\"\n }"},
		{"no change", `[1]`, `[1]`, " [\n   1\n ]"},
		{"invisible characters", `"a"`, "\"a\u200b\u202e\U000e0041é\"", "-\"a\"\n+\"a\\u200b\\u202e\\udb40\\udc41é\""},
		{"invalid JSON", `<b>`, `{}`, "-<b>\n+{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			room := diffBudget
			for _, line := range diffJSON(json.RawMessage(tt.before), json.RawMessage(tt.after), &room) {
				lines = append(lines, line.Sign+line.Text)
			}
			if got := strings.Join(lines, "\n"); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// The budget limits the lines of all diffs together: a server may change many long definitions.
func TestDiffOfManyLines(t *testing.T) {
	long, room := json.RawMessage("["+strings.Repeat("1,", 690)+"1]"), diffBudget
	for i, want := range []bool{true, true, false} {
		if diff := diffJSON(long, json.RawMessage("["+strings.Repeat("2,", 690)+"1]"), &room); (diff != nil) != want {
			t.Errorf("%d: %d lines with a budget of %d", i, len(diff), room)
		}
	}
	if diff := diffJSON(json.RawMessage(`1`), json.RawMessage(`2`), &room); len(diff) != 2 {
		t.Errorf("a short diff has %d lines with a budget of %d, want 2", len(diff), room)
	}
}

// A diff of the shown parts would hide a change behind them.
func TestDiffBehindTheCut(t *testing.T) {
	same, room := strings.Repeat("a", shownChars), diffBudget
	before, after := json.RawMessage(`["`+same+`",1]`), json.RawMessage(`["`+same+`",2]`)
	if diff := diffJSON(before, after, &room); diff != nil || room != diffBudget {
		t.Errorf("%d lines, %d of the budget left", len(diff), room)
	}
}
