package mcpconsole

import (
	"embed"
	"html/template"
	"sync"
)

// A page is a page of the console.
type page struct {
	pattern string // path pattern of http.ServeMux
	name    string // template
	title   string

	// show returns the data of the template.
	show func(*consoleRequest) (any, error)

	// live is called once for each stream. It returns a function, called once a second, that returns
	// the changes since its last call. live is nil for a static page.
	live func(*consoleRequest) func() (patch, error)
}

// pages are all pages. Those with a one-word path are in the navigation.
var pages = []page{
	overviewPage, serversPage, serverPage, toolsPage, toolPage, callsPage, callPage, originalPage, conversationsPage,
	connectPage,
}

// An action handles a form of the console. It returns the URL to redirect to, or renders a page
// itself and returns "".
type action struct {
	pattern string // path pattern
	do      func(*consoleRequest) (next string, err error)
}

var actions = append(serverActions, callAction)

// A patch holds the changes of a page, by element id.
type patch struct {
	Text   map[string]string            `json:"text,omitempty"`   // new text of an element
	Set    map[string]map[string]string `json:"set,omitempty"`    // new attributes of an element
	Rows   []row                        `json:"rows,omitempty"`   // new table rows, the latest first
	Reload bool                         `json:"reload,omitempty"` // the page has other elements now
}

// A row is a row of a table.
type row struct {
	ID    string   `json:"id"`
	Class string   `json:"class,omitempty"`
	Link  string   `json:"link,omitempty"` // target of its first link
	Cells []string `json:"cells"`
}

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// templates are parsed when they are first used, so that commands start sooner.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(templateFuncs).ParseFS(templateFiles, "templates/*.html"))
})

// A layoutData is the data of the layout.
type layoutData struct {
	Request *consoleRequest
	Page    *page
	Data    any
}
