package mcpconsole

import (
	"embed"
	"html/template"
)

// A page is what the console shows at a path.
type page struct {
	pattern string // of its path, as http.ServeMux has them
	name    string // of its template
	title   string

	// show returns what the template shows.
	show func(*visit) (any, error)

	// live returns what has changed on the page since the last time it was called for the same stream; nil for a page
	// that does not move. It is asked once a second.
	live func(*visit) func() (patch, error)
}

// pages are all pages. Those with a one-word path are in the navigation.
var pages = []page{
	overviewPage, serversPage, serverPage, toolsPage, toolPage, callsPage, callPage, originalPage, conversationsPage,
	connectPage,
}

// An action is something that a form of the console does. It returns the address to go on at, or shows a page itself
// and returns "".
type action struct {
	pattern string // of its path
	do      func(*visit) (next string, err error)
}

// actions are all actions.
var actions = append(serverActions, callAction)

// A patch says what has changed on a page. Elements are found by their id.
type patch struct {
	Text   map[string]string            `json:"text,omitempty"`   // what an element says
	Set    map[string]map[string]string `json:"set,omitempty"`    // attributes of an element
	Rows   []row                        `json:"rows,omitempty"`   // new ones of the table, the latest first
	Reload bool                         `json:"reload,omitempty"` // the page has other elements now
}

// A row is a row of a table.
type row struct {
	ID    string   `json:"id"`
	Class string   `json:"class,omitempty"`
	Link  string   `json:"link,omitempty"` // of its first link
	Cells []string `json:"cells"`
}

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

var templates = template.Must(template.New("").Funcs(templateFuncs).ParseFS(templateFiles, "templates/*.html"))

// A shown page is what the layout gets.
type shown struct {
	Visit *visit
	Page  *page
	Data  any
}
