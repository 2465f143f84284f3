package mcpconsole

import (
	"net/http"
	"strings"
)

// navigation lists the pages in the navigation bar.
var navigation = [...]struct{ path, title string }{
	{"/", "Overview"}, {"/servers", "Servers"}, {"/tools", "Tools"}, {"/calls", "Calls"},
	{"/conversations", "Conversations"}, {"/connect", "Connect"},
}

// A navLink is a link of the navigation.
type navLink struct {
	Title, Address string
	Current        string // aria-current: page for the page itself, true for one below it, else ""
}

// Nav returns the links of the navigation.
func (s layoutData) Nav() []navLink {
	path := s.Request.r.URL.Path
	links := make([]navLink, len(navigation))
	for i, to := range navigation {
		links[i] = navLink{Title: to.title, Address: s.Request.Link(to.path)}
		switch {
		case path == to.path:
			links[i].Current = "page"
		case to.path != "/" && strings.HasPrefix(path, to.path+"/"):
			links[i].Current = "true"
		}
	}
	return links
}

// Title returns the title of the page, or of its data if that has one.
func (s layoutData) Title() string {
	if data, ok := s.Data.(interface{ title() string }); ok {
		return data.title()
	}
	return s.Page.title
}

// Live returns the URL of the stream that updates the page, "" for a static page. Its query has the
// query and the path values of the page, and the liveQuery of its data.
func (s layoutData) Live() string {
	if s.Page.live == nil {
		return ""
	}
	r := s.Request.r
	query := r.URL.Query()
	for part := range strings.SplitSeq(s.Page.pattern, "/") {
		if name := strings.Trim(part, "{}"); name != part && name != "$" {
			query.Set(name, r.PathValue(name))
		}
	}
	if data, ok := s.Data.(interface{ liveQuery() (name, value string) }); ok {
		query.Set(data.liveQuery())
	}
	address := s.Request.Link("/live/" + s.Page.name)
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	return address
}

// A failure is the data of the template "error".
type failure struct {
	Status  int
	Message string
}

func (f failure) title() string { return http.StatusText(f.Status) }
