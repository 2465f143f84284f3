package mcpgateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// newActivity returns the admin API of a gateway without earlier calls.
func newActivity(t *testing.T, config string) (*adminTest, *Handler) {
	t.Helper()
	all := activity.Process
	activity.Process = activity.NewLog()
	t.Cleanup(func() { activity.Process = all })
	a := newAdmin(t, config)
	return a, registry.current()[0]
}

// activeConfig returns the configuration of a gateway with a mask. more is added to it.
func activeConfig(more string) string {
	return `{"name":"one",` + more + `"mask":{"max_chars":200,"head_chars":100,"tail_chars":100,"recover":{}},"focus":{},
		"clients":[{"name":"ann","rules":[{"action":"deny","patterns":["sample::read_image"]}],"redact":["circuit \\w+"],"redact_fields":["password"]},{"name":"bob"}],
		"servers":[` + serverOf("sample", `{"handler":"mcp_sample"}`) + `,` + serverOf("dead", proxyTo("", "127.0.0.1:9")) +
		`]}`
}

// An agentTest is a client of a test gateway.
type agentTest struct {
	*testing.T
	h          *Handler
	name, path string
	session    string
	modern     bool
}

// agents returns a client for each endpoint and era.
func agents(t *testing.T, h *Handler, name string) map[string]*agentTest {
	w := serveAs(t, h, name,
		newPost("/mcp",
			`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},`+
				`"clientInfo":{"name":"x","version":"1"}}}`))
	return map[string]*agentTest{
		"/mcp":               {t, h, name, "/mcp", w.Header().Get(mcp.SessionHeader), false},
		"/mcp, modern":       {t, h, name, "/mcp", "", true},
		"one server":         {t, h, name, "/mcp/sample", "", false},
		"one server, modern": {t, h, name, "/mcp/sample", "", true},
		"/rpc":               {t, h, name, "/api/mcp-gateway/sample/rpc", "", false},
	}
}

// call calls a tool of the server sample.
func (a *agentTest) call(tool, arguments string) *httptest.ResponseRecorder {
	a.Helper()
	if a.path == "/mcp" {
		tool = "sample::" + tool
	}
	headers, meta := []string{}, ""
	if a.session != "" {
		headers = []string{mcp.SessionHeader, a.session}
	}
	if a.modern {
		headers = []string{mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", tool}
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	return serveAs(a.T, a.h, a.name, newPost(a.path, fmt.Sprintf(
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":%s%s}}`, tool, arguments, meta),
		headers...))
}

// calls returns the calls that match a query.
func (a *adminTest) calls(query string) (calls []activity.Call) {
	a.Helper()
	a.call("GET", "/mcp_gateway/calls"+query, "", &calls)
	return calls
}

func TestAdminCalls(t *testing.T) {
	a, h := newActivity(t, activeConfig(""))
	for name, agent := range agents(t, h, "ann") {
		t.Run(name, func(t *testing.T) {
			said := agent.call("read_log", `{"lines":100,"password":"abc"}`)
			agent.call("read_log", `{"lines":100}`)
			calls := a.calls("?limit=2")
			if len(calls) != 2 {
				t.Fatalf("got %+v", calls)
			}
			if failed := calls[1]; failed.Outcome != "error" || failed.ErrorCode != -32602 ||
				!strings.Contains(said.Body.String(), "-32602") {
				t.Errorf("response %s, recorded %+v", said.Body, failed)
			}
			call := calls[0]
			if call.Gateway != "one" || call.Client != "ann" || call.Server != "sample" || call.Name != "read_log" ||
				call.Method != "tools/call" ||
				call.Outcome != "ok" || call.RequestID != "7" || call.Seconds <= 0 || call.At.IsZero() ||
				call.Rule != "default allow" {
				t.Errorf("got %+v", call)
			}
			if call.CutTexts != 1 || call.CutChars < 5_000 || call.Received < 5_000 || call.Sent > 1_000 || call.Sent < 200 ||
				len(call.Originals) != 1 {
				t.Errorf("got %+v", call)
			}
			res := a.call("GET", fmt.Sprint("/mcp_gateway/calls/", call.ID), "", nil)
			if body, _ := io.ReadAll(res.Body); call.HasContent || strings.Contains(string(body), "arguments") ||
				strings.Contains(string(body), "result") {
				t.Errorf("got %s", body)
			}
		})
	}
}

// A path selects the calls of all gateways with this path, and only these.
func TestAdminCallsOfAPath(t *testing.T) {
	all := activity.Process
	activity.Process = activity.NewLog()
	defer func() { activity.Process = all }()
	config := func(name, path string) string {
		return fmt.Sprintf(`{"name":%q,"mcp_path":%q,"servers":[%s]}`, name, path,
			serverOf("sample", `{"handler":"mcp_sample"}`))
	}
	a := newAdmin(t, config("", "/a"), config("b", "/b"), config("also b", "/b"))
	for _, h := range registry.current() {
		serve(t, h, newPost("/api/mcp-gateway/sample/rpc", aCall))
	}
	for query, want := range map[string][]string{
		"?gateway=/a": {""}, "?gateway=b": {"b"}, "?gateway=/b": {"also b", "b"}, "": {"", "also b", "b"},
	} {
		names := []string{}
		for _, call := range a.calls(query) {
			names = append(names, call.Gateway)
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("%s: calls of %q, want %q", query, names, want)
		}
	}
}

func TestAdminCallsQueries(t *testing.T) {
	a, h := newActivity(t, activeConfig(""))
	ann, bob := agents(t, h, "ann")["/mcp"], agents(t, h, "bob")["/mcp"]
	// 1
	ann.call("echo", `{"text":"x"}`)
	// 2, denied
	ann.call("read_image", `{}`)
	// 3
	bob.call("read_image", `{}`)
	// 4, an error
	bob.call("echo", `{"wrong":true}`)
	// 5
	a.call("POST", "/mcp_gateway/call", `{"tool":"sample::echo","arguments":{"text":"x"},"client":"ann"}`, nil)
	// 6
	a.call("POST", "/mcp_gateway/call", `{"tool":"dead::x"}`, nil)
	// 7
	serveAs(t, h, "bob", newPost("/mcp",
		`{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"none:1"}}`,
		mcp.SessionHeader, bob.session))
	for query, want := range map[string][]int64{
		"":                               {7, 6, 5, 4, 3, 2, 1},
		"?limit=2":                       {7, 6},
		"?limit=0":                       {},
		"?after=5":                       {7, 6},
		"?after=5&limit=1":               {7},
		"?after=7":                       {},
		"?client=ann":                    {2, 1},
		"?client=operator":               {6, 5},
		"?client=stranger":               {},
		"?server=dead":                   {6},
		"?tool=echo":                     {5, 4, 1},
		"?outcome=ok":                    {5, 3, 1},
		"?outcome=acl_denied":            {2},
		"?outcome=failed":                {7, 6, 4, 2},
		"?gateway=one&client=bob":        {7, 4, 3},
		"?gateway=/mcp&client=bob":       {7, 4, 3},
		"?gateway=none":                  {},
		"?tool=echo&outcome=ok&after=1":  {5},
		"?server=sample&tool=read_image": {3, 2},
	} {
		ids := []int64{}
		for _, call := range a.calls(query) {
			ids = append(ids, call.ID)
		}
		if !slices.Equal(ids, want) {
			t.Errorf("%s: got %v, want %v", query, ids, want)
		}
	}
	denied := a.calls("?outcome=acl_denied")[0]
	if denied.Rule != "deny sample::read_image" || denied.Name != "read_image" || denied.Server != "sample" ||
		denied.Client != "ann" {
		t.Errorf("got %+v", denied)
	}
	if resource := a.calls("?after=6")[0]; resource.Method != "resources/read" || resource.Name != "none:1" {
		t.Errorf("got %+v", resource)
	}
	for path, want := range map[string]string{
		"/calls?limit=x":            "limit: must be a number from 0 to 1000",
		"/calls?limit=1001":         "limit: must be a number from 0 to 1000",
		"/calls?limit=-1":           "limit: must be a number from 0 to 1000",
		"/calls?after=x":            "after: must be a number",
		"/calls?after=-1":           "after: must be a number",
		"/calls/x":                  "id: must be a number",
		"/calls/99":                 "call 99 is not kept",
		"/calls/99/originals/obs_x": "call 99 is not kept",
		"/calls/1/originals/obs_x":  `original "obs_x" of call 1 is not kept`,
	} {
		var failure struct{ Error, Code string }
		if res := a.call("GET", "/mcp_gateway"+path, "", &failure); res.StatusCode/100 != 4 ||
			!strings.Contains(failure.Error, want) {
			t.Errorf("%s: got %d %+v", path, res.StatusCode, failure)
		}
	}
}

// Unauthenticated clients count as one owner, so they cannot displace the calls of others.
func TestAdminCallsOfUnauthenticatedClients(t *testing.T) {
	t.Setenv("ANN_TOKEN", "a-token-that-is-long-enough")
	a, h := newActivity(t,
		`{"name":"one","record":true,"auth":[{"provider":"token","tokens":[{"token":"{env.ANN_TOKEN}","client":"ann"}]}],
		"servers":[`+serverOf("sample", `{"handler":"mcp_sample"}`)+`]}`)
	everywhere := agents(t, h, "")
	for _, agent := range everywhere {
		if w := agent.call("echo", `{"text":"x"}`); w.Code != http.StatusUnauthorized {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	}
	calls := a.calls("")
	if len(calls) != len(everywhere) {
		t.Errorf("got %d calls", len(calls))
	}
	for _, call := range calls {
		if kept := activity.Process.Call(call.ID); kept.Owner != "" || call.HasContent || call.Outcome != "unauthorized" ||
			call.Client != "anonymous" {
			t.Errorf("got %+v", call)
		}
	}
}

// All endpoints record the result as the client got it.
func TestAdminCallsAreRecorded(t *testing.T) {
	a, h := newActivity(t, activeConfig(`"record":true,`))
	for name, agent := range agents(t, h, "ann") {
		t.Run(name, func(t *testing.T) {
			for _, test := range []struct{ tool, arguments, kept, result string }{
				{"read_log", `{"lines":100}`, `{"lines":100}`, "id=obs_"},
				{"read_log", `{"lines":1}`, `{"lines":1}`, "[redacted]"},
				{"echo", `{"text":"x","password":"abc"}`, `{"text":"x","password":"[redacted]"}`, "unknown field"},
				{"read_image", `{}`, `{}`, "acl_denied"},
			} {
				said := agent.call(test.tool, test.arguments).Body.String()
				listed := a.calls("?limit=1")[0]
				if !listed.HasContent || listed.Arguments != nil || listed.Result != nil {
					t.Errorf("got %+v", listed)
				}
				var call activity.Call
				a.call("GET", fmt.Sprint("/mcp_gateway/calls/", listed.ID), "", &call)
				result := string(call.Result)
				if !strings.Contains(said, `"result":`+result) && !strings.Contains(said, `"error":`+result) ||
					!strings.Contains(result, test.result) {
					t.Errorf("%s: recorded %s\nresponse %s", test.tool, result, said)
				}
				if string(call.Arguments) != test.kept {
					t.Errorf("%s: recorded %s", test.tool, call.Arguments)
				}
			}
		})
	}
}

// Text that was redacted before masking stays redacted. Viewing an original does not count as
// recovering it.
func TestAdminOriginals(t *testing.T) {
	a, h := newActivity(t, activeConfig(""))
	for name, agent := range agents(t, h, "ann") {
		t.Run(name, func(t *testing.T) {
			agent.call("read_log", `{"lines":1999}`)
			call := a.calls("?limit=1")[0]
			if len(call.Originals) != 1 {
				t.Fatalf("got %+v", call)
			}
			var original adminapi.Original
			path := fmt.Sprintf("/mcp_gateway/calls/%d/originals/%s", call.ID, url.PathEscape(call.Originals[0]))
			res := a.call("GET", path, "", &original)
			if res.StatusCode != http.StatusOK || original.ID != call.Originals[0] ||
				len([]rune(original.Text)) != original.Chars || original.Chars < call.CutChars {
				t.Errorf("got %d %.300v", res.StatusCode, original)
			}
			if lines := strings.Count(original.Text, "\n"); lines < 1_990 || strings.Contains(original.Text, "circuit opened") ||
				!strings.Contains(original.Text, "[redacted]") {
				t.Errorf("%d lines: %.300s", lines, original.Text)
			}
			agent.call("echo", `{"text":"x"}`)
			var failure struct{ Code string }
			path = fmt.Sprintf("/mcp_gateway/calls/%d/originals/%s", call.ID+1, call.Originals[0])
			if a.call("GET", path, "", &failure); failure.Code != "not_found" {
				t.Errorf("another call has the original: %+v", failure)
			}
		})
	}
	// The API does not show originals of an operator's call, because they are not redacted.
	a.call("POST", "/mcp_gateway/call", `{"tool":"sample::read_log","texts":{"lines":"1500"}}`, nil)
	if call := a.calls("?limit=1")[0]; call.CutChars == 0 || len(call.Originals) > 0 {
		t.Errorf("got %+v", call)
	}
	a.call("POST", "/mcp_gateway/call", `{"tool":"sample::read_log","texts":{"lines":"1500"},"client":"ann"}`, nil)
	call := a.calls("?limit=1")[0]
	var original adminapi.Original
	a.call("GET", fmt.Sprintf("/mcp_gateway/calls/%d/originals/%s", call.ID, call.Originals[0]), "", &original)
	if strings.Contains(original.Text, "circuit opened") || !strings.Contains(original.Text, "[redacted]") {
		t.Errorf("got %.300s", original.Text)
	}
	registry.remove(h)
	if res := a.call("GET", fmt.Sprintf("/mcp_gateway/calls/%d/originals/%s", call.ID, call.Originals[0]), "",
		nil); res.StatusCode != http.StatusNotFound {
		t.Errorf("after the gateway was removed: got %d", res.StatusCode)
	}
}

func TestAdminOverview(t *testing.T) {
	a, h := newActivity(t, activeConfig(`"record":true,`))
	agent := agents(t, h, "ann")["/mcp"]
	agent.call("read_log", `{}`)
	agent.call("read_image", `{}`)
	var overview adminapi.Overview
	a.call("GET", "/mcp_gateway/overview", "", &overview)
	if overview.Total.Calls != 2 || overview.Total.Failed != 1 || overview.Total.CutChars < 100_000 ||
		overview.Since.IsZero() {
		t.Errorf("got %+v", overview.Total)
	}
	var recent int64
	for _, interval := range overview.Recent {
		recent += interval.Calls
	}
	if recent != 2 {
		t.Errorf("got %d calls", recent)
	}
	if g := overview.Gateways; len(g) != 1 || g[0].Name != "one" || !g[0].Record || g[0].Servers != 2 ||
		g[0].Clients != 1 {
		t.Errorf("got %+v", g)
	}
	var server adminapi.ServerStatus
	a.call("GET", "/mcp_gateway/servers/sample", "", &server)
	if server.Sessions != 1 || server.Latency == nil || server.Latency.Calls != 1 || server.Latency.P50 <= 0 {
		t.Errorf("got %+v, %+v", server, server.Latency)
	}
	r := newPost("/mcp", "", mcp.SessionHeader, agent.session)
	r.Method = http.MethodDelete
	serveAs(t, h, "ann", r)
	var servers []adminapi.ServerStatus
	if a.call("GET", "/mcp_gateway/servers", "", &servers); servers[0].Sessions != 0 {
		t.Errorf("after the session ended: got %+v", servers)
	}
}

func TestAdminSavings(t *testing.T) {
	a, h := newActivity(t, activeConfig(""))
	agent := agents(t, h, "ann")["/mcp"]
	agent.call("read_log", `{}`)
	agent.call("echo", `{"text":"x"}`)
	for query, price := range map[string]float64{
		"": 0, "?price=3": 3, "?price=0.25&gateway=one": 0.25, "?gateway=/mcp": 0,
	} {
		var savings adminapi.Savings
		a.call("GET", "/mcp_gateway/savings"+query, "", &savings)
		tokens := savings.Total.CutChars / charsPerToken
		if savings.Total.Calls != 2 || tokens < 25_000 || savings.Total.Tokens != tokens ||
			savings.Total.Money != float64(tokens)*price/1e6 || savings.Price != price {
			t.Errorf("%s: got %+v", query, savings)
		}
		if len(savings.Tools) != 2 || savings.Tools[0].Name != "read_log" ||
			savings.Tools[0].CutChars != savings.Total.CutChars || savings.Tools[1].Name != "echo" {
			t.Errorf("%s: got %+v", query, savings.Tools)
		}
		if len(savings.Days) == 0 || savings.Days[len(savings.Days)-1].Calls == 0 {
			t.Errorf("%s: got %+v", query, savings.Days)
		}
	}
	for _, price := range []string{"x", "-1", "NaN", "Inf", "1e7", "1,5"} {
		var failure struct{ Error, Code string }
		if res := a.call("GET", "/mcp_gateway/savings?price="+price, "", &failure); res.StatusCode != http.StatusBadRequest ||
			!strings.HasPrefix(failure.Error, "price: ") {
			t.Errorf("%s: got %d %+v", price, res.StatusCode, failure)
		}
	}
	var none adminapi.Savings
	activity.Models.Add(&activity.Request{Route: "savings", SavedChars: 1000}) // not of a gateway
	if a.call("GET", "/mcp_gateway/savings?gateway=none", "", &none); none.Total != (adminapi.Saving{}) ||
		len(none.Tools)+len(none.Days) > 0 || none.Conversations != none.Total {
		t.Errorf("got %+v", none)
	}
	var all adminapi.Savings
	if a.call("GET", "/mcp_gateway/savings", "", &all); all.Conversations.Tokens == 0 {
		t.Errorf("got %+v", all.Conversations)
	}
}
