package mcpconsole

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"hash/fnv"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/html"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
)

// streams bounds the number of live pages, over all consoles of the process.
var streams = quota.NewMeter(quota.NewKind("console_streams"), quota.Limits{Entries: 64, OwnerEntries: 8})

const (
	streamInterval     = time.Second      // how often a page is checked for changes
	streamKeepAlive    = 15 * time.Second // interval of keep-alive comments
	streamLifetime     = time.Hour        // then the stream ends; browsers reconnect and authenticate again
	streamWriteTimeout = 10 * time.Second // for one event
)

// stream sends the changes of a page as server-sent events. It ends when the user leaves or the
// configuration stops.
func (v *consoleRequest) stream(p *page) {
	header := v.w.Header()
	header.Set("X-Accel-Buffering", "no")
	if v.r.Method == http.MethodHead {
		header.Set("Content-Type", "text/event-stream")
		return
	}
	owner := cmp.Or(v.User, "@"+ratelimit.Address(clientrequest.Address(v.r)))
	if !streams.Take(owner, 0) {
		header.Set("Retry-After", "10")
		v.fail(httpError(http.StatusServiceUnavailable, "too many live pages are open"))
		return
	}
	defer streams.Give(owner, 0)
	ctx, end := context.WithTimeout(v.r.Context(), streamLifetime)
	defer end()
	defer context.AfterFunc(v.h.stopping, end)()
	v.r = v.r.WithContext(ctx)
	header.Set("Content-Type", "text/event-stream")
	if err := v.follow(p); err != nil && ctx.Err() == nil {
		v.h.logger.Info("live page ended", zap.String("page", p.name), zap.Error(err))
	}
}

// follow writes the changes of a page until the context of the request ends.
func (v *consoleRequest) follow(p *page) error {
	out := http.NewResponseController(v.w)
	_ = out.SetReadDeadline(time.Time{}) // the request has been read
	defer func() { _ = out.SetWriteDeadline(time.Time{}) }()
	write := func(event string) error {
		_ = out.SetWriteDeadline(time.Now().Add(streamWriteTimeout)) // replaces the server's timeout for the whole response
		if _, err := v.w.Write([]byte(event)); err != nil {
			return err
		}
		return out.Flush()
	}
	if err := write("retry: 2000\n\n"); err != nil {
		return err
	}
	changes := p.live(v)
	ticker := time.NewTicker(streamInterval)
	defer ticker.Stop()
	for written := time.Now(); ; {
		event := ""
		change, err := changes()
		if err != nil {
			return err
		}
		if !change.isEmpty() {
			encoded, err := json.Marshal(change) // has no line breaks
			if err != nil {
				return err
			}
			event = "data: " + string(encoded) + "\n\n"
		} else if time.Since(written) >= streamKeepAlive {
			event = ":\n\n"
		}
		if event != "" {
			if err := write(event); err != nil {
				return err
			}
			written = time.Now()
		}
		select {
		case <-v.r.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// isEmpty reports whether nothing has changed.
func (p *patch) isEmpty() bool {
	return len(p.Text) == 0 && len(p.Set) == 0 && len(p.Rows) == 0 && !p.Reload
}

// patchable lists the attributes that a patch may set, as in console.js.
var patchable = []string{
	"class", "d", "width", "height", "x", "y", "points", "title", "aria-label", "value", "datetime",
}

// liveSnapshots returns the live function of a page. It renders the page again and compares the
// texts and attributes of elements with an id. If anything else differs, the browser must reload
// the page. So a patched page always equals a fresh one.
func liveSnapshots(name string, show func(*consoleRequest) (any, error)) func(*consoleRequest) func() (patch, error) {
	return func(v *consoleRequest) func() (patch, error) {
		var before *snapshot
		return func() (patch, error) {
			data, err := show(v)
			if err != nil {
				return patch{}, err
			}
			var rendered bytes.Buffer
			if err := templates().ExecuteTemplate(&rendered, name, layoutData{v, new(page), data}); err != nil {
				return patch{}, err
			}
			now, err := readSnapshot(&rendered)
			if err != nil {
				return patch{}, err
			}
			changes := now.since(before)
			before = now
			return changes, nil
		}
	}
}

// A snapshot is the patchable content of a rendered page.
type snapshot struct {
	text  map[string]string            // texts of elements that have an id and only text
	set   map[string]map[string]string // attributes of elements with an id
	shape uint64                       // hash of everything else
}

// since returns the changes since before, or everything if before is nil.
func (m *snapshot) since(before *snapshot) patch {
	if before == nil {
		return patch{Text: m.text, Set: m.set}
	}
	if m.shape != before.shape {
		return patch{Reload: true}
	}
	changes := patch{Text: map[string]string{}, Set: map[string]map[string]string{}}
	for id, text := range m.text {
		if text != before.text[id] {
			changes.Text[id] = text
		}
	}
	for id, attributes := range m.set {
		changed := maps.Clone(attributes)
		maps.DeleteFunc(changed, func(name, value string) bool { return before.set[id][name] == value })
		if len(changed) > 0 {
			changes.Set[id] = changed
		}
	}
	return changes
}

// readSnapshot reads a rendered page.
func readSnapshot(rendered io.Reader) (*snapshot, error) {
	read := &snapshot{text: map[string]string{}, set: map[string]map[string]string{}}
	shape := fnv.New64a()
	addShape := func(parts ...string) {
		for _, part := range parts {
			_, _ = io.WriteString(shape, part+"\x00")
		}
	}
	leaf := "" // id of the element that has just begun, while it contains only text
	tokens := html.NewTokenizer(rendered)
	for {
		kind := tokens.Next()
		token := tokens.Token()
		switch kind {
		case html.ErrorToken:
			read.shape = shape.Sum64()
			if err := tokens.Err(); err != io.EOF {
				return nil, err
			}
			return read, nil
		case html.TextToken:
			if leaf != "" {
				read.text[leaf] = token.Data
			} else {
				addShape(token.Data)
			}
			continue
		case html.StartTagToken, html.SelfClosingTagToken:
			if text, mixed := read.text[leaf]; mixed { // the element also contains another element
				addShape(text)
				delete(read.text, leaf)
			}
			leaf = read.element(token, addShape)
			if kind == html.StartTagToken && leaf != "" && !isVoid(token.Data) {
				continue
			}
		case html.EndTagToken:
			if _, full := read.text[leaf]; leaf != "" && !full {
				read.text[leaf] = ""
			}
			addShape("/", token.Data)
		}
		leaf = ""
	}
}

// element reads a start tag and returns its id.
func (m *snapshot) element(tag html.Token, addShape func(...string)) (id string) {
	addShape(tag.Data)
	if i := slices.IndexFunc(tag.Attr, func(a html.Attribute) bool { return a.Key == "id" }); i >= 0 {
		id = tag.Attr[i].Val
	}
	for _, attribute := range tag.Attr {
		addShape(attribute.Key)
		if id == "" || !slices.Contains(patchable, attribute.Key) {
			addShape(attribute.Val)
			continue
		}
		if m.set[id] == nil {
			m.set[id] = map[string]string{}
		}
		m.set[id][attribute.Key] = attribute.Val
	}
	return id
}

// isVoid reports whether an element has no end tag.
func isVoid(name string) bool {
	switch name {
	case "br", "hr", "img", "input", "link", "meta":
		return true
	}
	return false
}
