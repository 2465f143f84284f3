package mcpconsole

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var serversPage = page{
	pattern: "/servers", name: "servers", title: "Servers", show: showServers, live: differences("servers", showServers),
}

// A serversView shows all servers.
type serversView struct {
	Servers []serverRow
	Files   []adminapi.FileStatus
}

func showServers(v *visit) (any, error) {
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

// A serverRow is a server in the list of all.
type serverRow struct {
	*adminapi.ServerStatus
}

// ID begins the ids of what moves. It is the same however many servers there are.
func (r serverRow) ID() string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(r.Gateway + "\n" + r.ServerStatus.Path + "\n" + r.Name)) // it never fails
	return fmt.Sprintf("s%x", sum.Sum64())
}

// Page is the path of the page of the server.
func (r serverRow) Page() string { return serverPath(r.Name) }

func serverPath(name string) string { return "/servers/" + url.PathEscape(name) }

// Words say how the server is.
func (r serverRow) Words() string {
	text, _ := r.look()
	return text
}

// Class is how the badge looks that says so.
func (r serverRow) Class() string {
	_, class := r.look()
	return class
}

// look says how the server is, and how a badge looks that says so.
func (r serverRow) look() (words, class string) {
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
	return "not asked yet", "idle"
}

// Took says how long calls took: most of them, by percent.
func (r serverRow) Took(percent int) string {
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

// Has says how many tools the server has, if that is known.
func (r serverRow) Has() string {
	if r.Tools == nil {
		return "–"
	}
	return strconv.Itoa(*r.Tools)
}

// Changed says how many tools have changed, if any have.
func (r serverRow) Changed() string {
	if r.ToolsChanged == 0 {
		return ""
	}
	return plural(r.ToolsChanged, "tool") + " changed"
}

// plural returns a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return humanize.Comma(int64(n)) + " " + thing + "s"
}

var serverPage = page{
	pattern: "/servers/{server}", name: "server", title: "Server",
	show: showServer, live: differences("server", showServer),
}

// A serverView shows a server.
type serverView struct {
	serverRow
	Did     string // what was just done with it
	Account *loginView
	Changes []changeView
	More    int // changes that are not shown
}

// A loginView shows how the gateway is logged in at a server.
type loginView struct {
	State  string // in words
	Needed bool   // a person has to log in
	Of     string // whose login can be ended: gateway, client, or empty for none
}

// A changeView shows how the definition of a tool has changed.
type changeView struct {
	adminapi.ToolChange
	Diff []diffLine // empty if one of both is not known, or if they are too long to compare
}

// Latest is the latest definition, if it is known.
func (c *changeView) Latest() string { return visible(indented(c.After)) }

// maxChanges is how many changed tools are shown at once.
const maxChanges = 20

func showServer(v *visit) (any, error) {
	status, err := askedServer(v)
	if err != nil {
		return nil, err
	}
	changes, err := get[[]adminapi.ToolChange](v, "/tools/changes?gateway="+url.QueryEscape(status.Gateway))
	if err != nil {
		return nil, err
	}
	return newServerView(&status, changes, v.r.URL.Query().Get("did")), nil
}

// askedServer returns how the server is that a visit is about.
func askedServer(v *visit) (adminapi.ServerStatus, error) {
	asked := v.r.URL.Query()
	name := cmp.Or(v.r.PathValue("server"), asked.Get("server")) // which the address of the stream has
	return get[adminapi.ServerStatus](v, serverPath(name)+"?gateway="+url.QueryEscape(asked.Get("gateway")))
}

func newServerView(s *adminapi.ServerStatus, changes []adminapi.ToolChange, did string) *serverView {
	view := &serverView{serverRow: serverRow{s}, Did: doneWords[did], Account: newLoginView(s)}
	room := diffRoom
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
			shown.Diff = diffJSON(change.Before, change.After, &room)
		}
		view.Changes = append(view.Changes, shown)
	}
	return view
}

func (v *serverView) title() string { return v.Name }

// newLoginView returns how the gateway is logged in at a server, nil if it does not log in.
func newLoginView(s *adminapi.ServerStatus) *loginView {
	if s.Login == nil {
		return nil
	}
	switch s.Login.State {
	case "logged_in":
		return &loginView{State: "logged in", Of: "gateway"}
	case "required":
		return &loginView{State: "login required", Needed: true}
	case "per_client":
		return &loginView{State: "each client logs in for itself", Of: "client"}
	}
	return &loginView{State: "the gateway logs in by itself (" + s.Login.State + ")"}
}

// logIn leads to where a person logs the gateway in at a server. That address is a secret, and a new one each time, so
// pages do not have it. Users who may only look do not get it either: the account that logs in is that of all clients.
func (v *visit) logIn() {
	if v.ReadOnly {
		v.fail(errReadOnly)
		return
	}
	status, err := askedServer(v)
	if err != nil {
		v.fail(err)
		return
	}
	if u, err := url.Parse(status.LoginURL); err != nil || u.Scheme != "http" && u.Scheme != "https" {
		v.fail(refused(http.StatusConflict, "the server %q has no address to log in at, or needs no login", status.Name))
		return
	}
	v.w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(v.w, v.r, status.LoginURL, http.StatusSeeOther)
}

// doneWords say what an action has done, by its name in an address. Nothing else in an address is shown.
var doneWords = map[string]string{
	"check":   "It was asked just now. Below is how it is.",
	"restart": "Its child processes were started again.",
	"refresh": "What it had listed is forgotten, and clients were told to ask again.",
	"logout":  "The login was ended.",
	"accept":  "The definition was accepted.",
}

// serverActions are what can be done with a server.
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

// serverAction returns the action that has the admin API do something with a server.
func serverAction(name string, body func(*http.Request) any) action {
	return action{"/servers/{server}/" + name, func(v *visit) (string, error) {
		var asked any
		if body != nil {
			asked = body(v.r)
		}
		server, gateway := v.r.PathValue("server"), v.r.PostFormValue("gateway")
		_, err := post[any](v, fmt.Sprintf("%s/%s?gateway=%s", serverPath(server), name, url.QueryEscape(gateway)), asked)
		return v.At(serverPath(server), "gateway", gateway, "did", name), err
	}}
}
