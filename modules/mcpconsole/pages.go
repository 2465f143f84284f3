package mcpconsole

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
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

// An asset is a static file.
type asset struct {
	name, contentType, etag string
	content                 []byte
}

// contentTypes holds the content types of assets by file extension. The machine's MIME tables may
// have others.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// assets returns all assets.
var assets = sync.OnceValue(func() (all []*asset) {
	files, err := fs.ReadDir(assetFiles, "assets")
	if err != nil {
		panic(err) // embedded files always exist
	}
	for _, file := range files {
		content, err := assetFiles.ReadFile("assets/" + file.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		etag := `"` + hex.EncodeToString(sum[:16]) + `"`
		all = append(all, &asset{file.Name(), contentTypes[path.Ext(file.Name())], etag, content})
	}
	return all
})

// serve serves the asset. Browsers cache and revalidate it.
func (a *asset) serve(v *consoleRequest) {
	v.w.Header().Set("Content-Type", a.contentType)
	v.w.Header().Set("Cache-Control", "private, no-cache")
	v.w.Header().Set("ETag", a.etag)
	http.ServeContent(v.w, v.r, a.name, time.Time{}, bytes.NewReader(a.content))
}
