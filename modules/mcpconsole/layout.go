package mcpconsole

import (
	"net/http"
	"strings"
)

// navigation are the pages that all pages link to.
var navigation = [...]struct{ path, title string }{
	{"/", "Overview"}, {"/servers", "Servers"}, {"/tools", "Tools"}, {"/calls", "Calls"},
	{"/conversations", "Conversations"}, {"/connect", "Connect"},
}

// A navLink is a link of the navigation.
type navLink struct {
	Title, Address string
	Current        string // for aria-current: page for the page itself, true for one below it, "" for others
}

// Nav returns the links of the navigation.
func (s shown) Nav() []navLink {
	path := s.Visit.r.URL.Path
	links := make([]navLink, len(navigation))
	for i, to := range navigation {
		links[i] = navLink{Title: to.title, Address: s.Visit.At(to.path)}
		switch {
		case path == to.path:
			links[i].Current = "page"
		case to.path != "/" && strings.HasPrefix(path, to.path+"/"):
			links[i].Current = "true"
		}
	}
	return links
}

// Title returns the title of the page: that of its data, if these have a method title, such as a name.
func (s shown) Title() string {
	if data, ok := s.Data.(interface{ title() string }); ok {
		return data.title()
	}
	return s.Page.title
}

// Live returns the address of the stream that keeps the page up to date, "" if it does not move. It has the query of
// the page, what the wildcards of its path stand for, and what its data have in a method liveQuery.
func (s shown) Live() string {
	if s.Page.live == nil {
		return ""
	}
	r := s.Visit.r
	query := r.URL.Query()
	for part := range strings.SplitSeq(s.Page.pattern, "/") {
		if name := strings.Trim(part, "{}"); name != part && name != "$" {
			query.Set(name, r.PathValue(name))
		}
	}
	if data, ok := s.Data.(interface{ liveQuery() (name, value string) }); ok {
		query.Set(data.liveQuery())
	}
	address := s.Visit.At("/live/" + s.Page.name)
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	return address
}

// A failure is what the template "error" shows.
type failure struct {
	Status  int
	Message string
}

func (f failure) title() string { return http.StatusText(f.Status) }
