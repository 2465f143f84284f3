package mcpconsole

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/aryann/difflib"
	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var serversPage = page{
	pattern: "/servers", name: "servers", title: "Servers", show: showServers, live: liveSnapshots("servers", showServers),
}

// A serversView is the data of the servers page.
type serversView struct {
	Servers []serverRow
	Files   []adminapi.FileStatus
}

func showServers(v *consoleRequest) (any, error) {
	servers, err := get[[]adminapi.ServerStatus](v, "/servers")
	if err != nil {
		return nil, err
	}
	files, err := get[[]adminapi.FileStatus](v, "/files")
	if err != nil {
		return nil, err
	}
	return newServersView(servers, files), nil
}

func newServersView(servers []adminapi.ServerStatus, files []adminapi.FileStatus) *serversView {
	view := &serversView{Files: files}
	for i := range servers {
		view.Servers = append(view.Servers, serverRow{&servers[i]})
	}
	return view
}

// A serverRow is a server in the list.
type serverRow struct {
	*adminapi.ServerStatus
}

// ID returns the prefix of element ids. It does not depend on the other servers.
func (r serverRow) ID() string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(r.Gateway + "\n" + r.ServerStatus.Path + "\n" + r.Name)) // never fails
	return fmt.Sprintf("s%x", sum.Sum64())
}

// Page returns the path of the server's page.
func (r serverRow) Page() string { return serverPath(r.Name) }

func serverPath(name string) string { return "/servers/" + url.PathEscape(name) }

// StateText returns the state of the server as text.
func (r serverRow) StateText() string {
	text, _ := r.badge()
	return text
}

// Class returns the CSS class of the state badge.
func (r serverRow) Class() string {
	_, class := r.badge()
	return class
}

// badge returns the text and CSS class of the state badge.
func (r serverRow) badge() (words, class string) {
	switch {
	case r.Login != nil && r.Login.State == "required":
		return "login required", "warn"
	case r.State == adminapi.StateHealthy:
		return "up", "ok"
	case r.State == adminapi.StateUnhealthy:
		return "down", "bad"
	case len(r.Children) > 0:
		return string(r.Children[0].State), "idle"
	}
	return "not contacted yet", "idle"
}

// LatencyText returns a latency percentile: 50, 95 or 99.
func (r serverRow) LatencyText(percent int) string {
	l := r.Latency
	switch {
	case l == nil:
		return "–"
	case percent == 50:
		return duration(l.P50)
	case percent == 95:
		return duration(l.P95)
	}
	return duration(l.P99)
}

// ToolCount returns the number of tools, if known.
func (r serverRow) ToolCount() string {
	if r.Tools == nil {
		return "–"
	}
	return strconv.Itoa(*r.Tools)
}

// Changed returns how many tools have changed, "" for none.
func (r serverRow) Changed() string {
	if r.ToolsChanged == 0 {
		return ""
	}
	return plural(r.ToolsChanged, "tool") + " changed"
}

// plural returns a count with its unit.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return humanize.Comma(int64(n)) + " " + thing + "s"
}

var serverPage = page{
	pattern: "/servers/{server}", name: "server", title: "Server",
	show: showServer, live: liveSnapshots("server", showServer),
}

// A serverView is the data of a server's page.
type serverView struct {
	serverRow
	Notice  string // about the last action; empty for none
	Account *loginView
	Changes []changeView
	More    int // number of changes not shown
}

// A loginView shows the login state at a server.
type loginView struct {
	State    string // text
	Needed   bool   // a person has to log in
	LogoutOf string // whose login can be ended: gateway, client, or empty
}

// A changeView shows a changed tool definition.
type changeView struct {
	adminapi.ToolChange
	Diff []diffLine // empty if a definition is unknown, or both are too long to compare
}

// Latest returns the latest definition, if known.
func (c *changeView) Latest() string { return visible(indented(c.After)) }

// maxChanges is how many changed tools are shown.
const maxChanges = 20

func showServer(v *consoleRequest) (any, error) {
	status, err := requestedServer(v)
	if err != nil {
		return nil, err
	}
	changes, err := get[[]adminapi.ToolChange](v, "/tools/changes?gateway="+url.QueryEscape(status.Label()))
	if err != nil {
		return nil, err
	}
	return newServerView(&status, changes, v.r.URL.Query().Get("did")), nil
}

// requestedServer returns the status of the server that a request names.
func requestedServer(v *consoleRequest) (adminapi.ServerStatus, error) {
	query := v.r.URL.Query()
	name := cmp.Or(v.r.PathValue("server"), query.Get("server")) // a stream has the name in its query
	return get[adminapi.ServerStatus](v, serverPath(name)+"?gateway="+url.QueryEscape(query.Get("gateway")))
}

func newServerView(s *adminapi.ServerStatus, changes []adminapi.ToolChange, did string) *serverView {
	view := &serverView{serverRow: serverRow{s}, Notice: doneTexts[did], Account: newLoginView(s)}
	budget := diffBudget
	for _, change := range changes {
		switch {
		case change.Server != s.Name || change.Gateway != s.Gateway:
			continue
		case len(view.Changes) == maxChanges:
			view.More++
			continue
		}
		shown := changeView{ToolChange: change}
		if len(change.Before) > 0 && len(change.After) > 0 {
			shown.Diff = diffJSON(change.Before, change.After, &budget)
		}
		view.Changes = append(view.Changes, shown)
	}
	return view
}

func (v *serverView) title() string { return v.Name }

// newLoginView returns the login state at a server, nil if the server needs no login.
func newLoginView(s *adminapi.ServerStatus) *loginView {
	if s.Login == nil {
		return nil
	}
	switch s.Login.State {
	case "logged_in":
		return &loginView{State: "logged in", LogoutOf: "gateway"}
	case "required":
		return &loginView{State: "login required", Needed: true}
	case "per_client":
		return &loginView{State: "each client logs in for itself", LogoutOf: "client"}
	}
	return &loginView{State: "the gateway logs in automatically (" + s.Login.State + ")"}
}

// logIn redirects to the page where a person logs the gateway in to a server. Pages do not contain
// its URL, which is secret and changes each time. Read-only users do not get it, because all
// clients share the account that logs in.
func (v *consoleRequest) logIn() {
	if v.ReadOnly {
		v.fail(errReadOnly)
		return
	}
	status, err := requestedServer(v)
	if err != nil {
		v.fail(err)
		return
	}
	if u, err := url.Parse(status.LoginURL); err != nil || u.Scheme != "http" && u.Scheme != "https" {
		v.fail(httpError(http.StatusConflict, "the server %q has no login URL, or needs no login", status.Name))
		return
	}
	v.w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(v.w, v.r, status.LoginURL, http.StatusSeeOther)
}

// doneTexts holds the notice after each action, by the action's name in the query. The page shows
// no text from the query itself.
var doneTexts = map[string]string{
	"check":   "Checked just now.",
	"restart": "Child processes restarted.",
	"refresh": "Cached lists dropped, clients notified.",
	"logout":  "Logged out.",
	"accept":  "Definition accepted.",
}

// serverActions are the actions on a server.
var serverActions = []action{
	serverAction("check", nil),
	serverAction("restart", nil),
	serverAction("refresh", nil),
	serverAction("logout", func(r *http.Request) any {
		return map[string]string{"client": r.PostFormValue("client")}
	}),
	serverAction("accept", func(r *http.Request) any {
		if r.PostFormValue("all") != "" {
			return nil
		}
		return map[string]string{"tool": r.PostFormValue("tool"), "seen": r.PostFormValue("seen")}
	}),
}

// serverAction returns an action that the admin API runs on a server.
func serverAction(name string, body func(*http.Request) any) action {
	return action{"/servers/{server}/" + name, func(v *consoleRequest) (string, error) {
		var request any
		if body != nil {
			request = body(v.r)
		}
		server, gateway := v.r.PathValue("server"), v.r.PostFormValue("gateway")
		_, err := post[any](v, fmt.Sprintf("%s/%s?gateway=%s", serverPath(server), name, url.QueryEscape(gateway)), request)
		return v.Link(serverPath(server), "gateway", gateway, "did", name), err
	}}
}

// A diffLine is a line of a diff.
type diffLine struct {
	Sign string // - for removed, + for added, or a space
	Text string
}

// Class returns the CSS class of the line.
func (l diffLine) Class() string {
	switch l.Sign {
	case "-":
		return "gone"
	case "+":
		return "new"
	}
	return ""
}

// diffBudget bounds the cost of all comparisons on one page, because a server may have any number
// of long definitions. The cost of a comparison, in time and memory, is the product of the line
// counts.
const diffBudget = 1_000_000

// diffJSON compares two JSON values line by line. It subtracts the cost from budget, and returns
// nil if budget is too small, or if a value is cut, because the cut may hide the change.
func diffJSON(before, after json.RawMessage, budget *int) (diff []diffLine) {
	old, latest := indented(before), indented(after)
	cost := (strings.Count(old, "\n") + 1) * (strings.Count(latest, "\n") + 1)
	if cost > *budget || max(utf8.RuneCountInString(old), utf8.RuneCountInString(latest)) > shownChars {
		return nil
	}
	*budget -= cost
	a, b := strings.Split(visible(old), "\n"), strings.Split(visible(latest), "\n")
	for _, line := range difflib.Diff(a, b) {
		diff = append(diff, diffLine{line.Delta.String(), line.Payload})
	}
	return diff
}

// visible escapes invisible characters and those that change the text direction. Models read such
// characters, so a user who accepts a definition must see them.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
