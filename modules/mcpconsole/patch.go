package mcpconsole

import (
	"bytes"
	"hash/fnv"
	"io"
	"maps"
	"slices"

	"golang.org/x/net/html"
)

// patchable are the attributes that a patch may set, as console.js has them.
var patchable = []string{
	"class", "d", "width", "height", "x", "y", "points", "title", "aria-label", "value", "datetime",
}

// differences returns what is to be the live function of a page: it renders the page again and finds what has changed
// in the texts and attributes of elements with an id. If anything else has, the page is to be loaded again. So what is
// patched is what a fresh page shows.
func differences(name string, show func(*visit) (any, error)) func(*visit) func() (patch, error) {
	return func(v *visit) func() (patch, error) {
		var before *moving
		return func() (patch, error) {
			data, err := show(v)
			if err != nil {
				return patch{}, err
			}
			var rendered bytes.Buffer
			if err := templates.ExecuteTemplate(&rendered, name, shown{v, new(page), data}); err != nil {
				return patch{}, err
			}
			now, err := readMoving(&rendered)
			if err != nil {
				return patch{}, err
			}
			changes := now.since(before)
			before = now
			return changes, nil
		}
	}
}

// A moving is a page, as far as it can be patched.
type moving struct {
	text  map[string]string            // of elements that have an id and nothing but a text in them
	set   map[string]map[string]string // attributes of elements with an id
	shape uint64                       // of all the rest
}

// since returns what has changed since another time, which is nil at first.
func (m *moving) since(before *moving) patch {
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

// readMoving reads a page.
func readMoving(rendered io.Reader) (*moving, error) {
	read := &moving{text: map[string]string{}, set: map[string]map[string]string{}}
	shape := fnv.New64a()
	same := func(parts ...string) {
		for _, part := range parts {
			_, _ = io.WriteString(shape, part+"\x00")
		}
	}
	leaf := "" // the id of the element that has just begun, as long as it has nothing but a text
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
				same(token.Data)
			}
			continue
		case html.StartTagToken, html.SelfClosingTagToken:
			if text, mixed := read.text[leaf]; mixed { // it has more than a text
				same(text)
				delete(read.text, leaf)
			}
			leaf = read.element(token, same)
			if kind == html.StartTagToken && leaf != "" && !isVoid(token.Data) {
				continue
			}
		case html.EndTagToken:
			if _, full := read.text[leaf]; leaf != "" && !full {
				read.text[leaf] = ""
			}
			same("/", token.Data)
		}
		leaf = ""
	}
}

// element reads the tag that an element begins with, and returns its id.
func (m *moving) element(tag html.Token, same func(...string)) (id string) {
	same(tag.Data)
	if i := slices.IndexFunc(tag.Attr, func(a html.Attribute) bool { return a.Key == "id" }); i >= 0 {
		id = tag.Attr[i].Val
	}
	for _, attribute := range tag.Attr {
		same(attribute.Key)
		if id == "" || !slices.Contains(patchable, attribute.Key) {
			same(attribute.Val)
			continue
		}
		if m.set[id] == nil {
			m.set[id] = map[string]string{}
		}
		m.set[id][attribute.Key] = attribute.Val
	}
	return id
}

// isVoid reports whether elements of a name have no end.
func isVoid(name string) bool {
	switch name {
	case "br", "hr", "img", "input", "link", "meta":
		return true
	}
	return false
}
