package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// maxTasksPerDocument is the maximum number of tasks from one document, so that long ones do not
// dominate.
const maxTasksPerDocument = 20

// docsTasks draws up to n sentences from the documents of the modules in go.mod.
func (s *Sample) docsTasks(seed uint64, n int) ([]task.Task, error) {
	documents, err := s.documents()
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed, 2))
	var tasks []task.Task
	seen := map[string]bool{} // releases of one module share their sentences
	for _, document := range documents {
		found := ReferenceTasks(document)
		random.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
		for _, t := range found[:min(len(found), maxTasksPerDocument)] {
			if !seen[t.Goal] {
				seen[t.Goal] = true
				tasks = append(tasks, t)
			}
		}
	}
	random.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	return tasks[:min(len(tasks), n)], nil
}

// documents returns the parts of Go's specification, and the Markdown files of Go and of the
// downloaded modules in go.mod.
func (s *Sample) documents() ([]string, error) {
	root, err := runGo("env", "GOROOT")
	if err != nil {
		return nil, err
	}
	all, err := specParts(root)
	if err != nil {
		return nil, err
	}
	directories, err := s.moduleDirectories()
	if err != nil {
		return nil, err
	}
	for _, directory := range append([]string{root}, directories...) {
		files, err := markdownFiles(directory)
		if err != nil {
			return nil, err
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			all = append(all, string(text))
		}
	}
	return all, nil
}

// moduleDirectories returns the directories of the modules in go.mod, in the order of that
// file. It skips transitive modules, because not every machine has them.
func (s *Sample) moduleDirectories() ([]string, error) {
	described, err := runGo("mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var mod struct{ Require []struct{ Path string } }
	if err := json.Unmarshal([]byte(described), &mod); err != nil {
		return nil, fmt.Errorf("go mod edit: %w", err)
	}
	list := []string{"list", "-m", "-e", "-f", "{{.Dir}}"}
	for _, required := range mod.Require {
		isOf := func(module string) bool { return strings.HasPrefix(required.Path+"/", module+"/") }
		if !slices.ContainsFunc(s.Without, isOf) {
			list = append(list, required.Path)
		}
	}
	directories, err := runGo(list...)
	return strings.Fields(directories), err
}

func markdownFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := strings.ToLower(entry.Name()); {
		case entry.IsDir() && (name == "testdata" || name == "vendor" || name == "node_modules"):
			return fs.SkipDir
		case entry.Type().IsRegular() && strings.HasSuffix(name, ".md") && !strings.HasPrefix(name, "change"):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// ReferenceTasks returns a task for each sentence of a document that refers to exactly one
// other section.
func ReferenceTasks(text string) []task.Task {
	lines := prune.Lines(text)
	if len(lines) < minLines || len(lines) > maxLines {
		return nil
	}
	outline := parseOutline(lines)
	var tasks []task.Task
	for _, p := range outline.paragraphs {
		for _, s := range p.sentences(lines) {
			target, ok := outline.target(s)
			if !ok || s.start < target.end && target.start < s.end {
				continue
			}
			rest, first := cut(lines, s.start, s.end, target.start)
			tasks = append(tasks, task.Task{
				Goal:     s.plain(),
				Source:   prune.Docs,
				Text:     joinLines(rest),
				Relevant: numbers(rest, first, first+target.end-target.start),
			})
		}
	}
	return tasks
}

// A section is a heading and the text below it, up to the next heading of the same or a
// higher level: lines [start, end), without blank lines at the end.
type section struct {
	title, anchor string
	level         int
	start, end    int
}

// A paragraph is prose, lines [start, end).
type paragraph struct{ start, end int }

// An outline has the sections and paragraphs of a document, without code and tables.
type outline struct {
	sections   []section
	paragraphs []paragraph
}

var (
	fence     = regexp.MustCompile("^ {0,3}(```+|~~~+)")
	heading   = regexp.MustCompile(`^(#{1,6})\s+(.*?)\s*#*\s*$`)
	underline = regexp.MustCompile(`^(=+|--+)\s*$`)
	item      = regexp.MustCompile(`^\s*([-*+]|\d+[.)])\s+`)
	noAnchor  = regexp.MustCompile(`[^\p{L}\p{N}_-]`)
	notProse  = regexp.MustCompile(`^(\s*[|<>]|\t| {4}|\s*\[[^\]]+\]:)`)
)

func parseOutline(lines []string) outline {
	var o outline
	seen := map[string]int{}
	inside := "" // fence of the current code block
	open := false
	for i, line := range lines {
		marks := fence.FindStringSubmatch(line)
		switch {
		case inside != "":
			if marks != nil && strings.HasPrefix(marks[1], inside) {
				inside = ""
			}
			continue
		case marks != nil:
			inside, open = marks[1], false
			continue
		}
		if title, level := headingAt(lines, i); level > 0 {
			o.sections = append(o.sections, section{title: title, anchor: anchor(title, seen), level: level, start: i})
			open = false
			continue
		}
		if strings.TrimSpace(line) == "" || underline.MatchString(line) || notProse.MatchString(line) &&
			!item.MatchString(line) && !open {
			open = false
			continue
		}
		if !open || item.MatchString(line) {
			o.paragraphs = append(o.paragraphs, paragraph{start: i})
			open = true
		}
		o.paragraphs[len(o.paragraphs)-1].end = i + 1
	}
	o.end(lines)
	return o
}

// headingAt returns the heading in line i and its level, or level 0.
func headingAt(lines []string, i int) (title string, level int) {
	if parts := heading.FindStringSubmatch(lines[i]); parts != nil {
		return plain(parts[2]), len(parts[1])
	}
	if i+1 == len(lines) || strings.TrimSpace(lines[i]) == "" || i > 0 && strings.TrimSpace(lines[i-1]) != "" {
		return "", 0
	}
	switch under := underline.FindString(lines[i+1]); {
	case under == "" || item.MatchString(lines[i]) || notProse.MatchString(lines[i]):
		return "", 0
	case under[0] == '=':
		return plain(lines[i]), 1
	default:
		return plain(lines[i]), 2
	}
}

// end sets the ends of the sections.
func (o *outline) end(lines []string) {
	for i := range o.sections {
		s := &o.sections[i]
		s.end = len(lines)
		for _, next := range o.sections[i+1:] {
			if next.level <= s.level {
				s.end = next.start
				break
			}
		}
		for strings.TrimSpace(lines[s.end-1]) == "" {
			s.end--
		}
	}
}

// anchor returns the anchor that GitHub assigns to a title.
func anchor(title string, seen map[string]int) string {
	name := strings.ReplaceAll(strings.ToLower(title), " ", "-")
	name = noAnchor.ReplaceAllString(name, "")
	count := seen[name]
	seen[name]++
	if count > 0 {
		return name + "-" + strconv.Itoa(count)
	}
	return name
}

// A sentence is in lines [start, end).
type sentence struct {
	text       string
	start, end int
}

var sentenceEnd = regexp.MustCompile(`[.!?]["')\]*]*\s+`)

func (p paragraph) sentences(lines []string) []sentence {
	text := strings.Join(lines[p.start:p.end], "\n")
	var all []sentence
	for at := 0; at < len(text); {
		size := len(text) - at
		for _, span := range sentenceEnd.FindAllStringIndex(text[at:], -1) {
			if next := text[at+span[1]:]; next == "" || !('a' <= next[0] && next[0] <= 'z') {
				size = span[1]
				break
			}
		}
		content := strings.TrimRight(text[at:at+size], " \n\t")
		start := p.start + strings.Count(text[:at], "\n")
		all = append(all, sentence{text: content, start: start, end: start + strings.Count(content, "\n") + 1})
		at += size
	}
	return all
}

var (
	image  = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	link   = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]*)[^)]*\)`)
	tag    = regexp.MustCompile(`<[^>]*>`)
	blanks = regexp.MustCompile(`\s+`)
	quotes = strings.NewReplacer("`", "", "**", "", "*", "", `"`, "", "“", "", "”", "", "[", "", "]", "")
)

// plain returns Markdown without its markup.
func plain(text string) string {
	text = tag.ReplaceAllString(image.ReplaceAllString(text, ""), "")
	text = quotes.Replace(link.ReplaceAllString(text, "$1"))
	return strings.TrimSpace(blanks.ReplaceAllString(text, " "))
}

func (s sentence) plain() string { return plain(item.ReplaceAllString(s.text, "")) }

// target returns the section that a sentence refers to, by a link or by name, if there is
// exactly one. A sentence that consists of little more than the reference does not count: it
// belongs to a table of contents.
func (o *outline) target(s sentence) (target section, ok bool) {
	without := plain(link.ReplaceAllString(item.ReplaceAllString(s.text, ""), ""))
	if len(strings.Fields(without)) < 4 || len(strings.Fields(s.plain())) < 6 {
		return section{}, false
	}
	found := o.linked(s)
	if len(found) == 0 && !strings.Contains(s.text, "](") {
		found = o.named(s)
	}
	if len(found) != 1 {
		return section{}, false
	}
	target = found[0]
	size := target.end - target.start
	return target, minRelevant <= size && size <= maxSection
}

func (o *outline) linked(s sentence) []section {
	var found []section
	for _, parts := range link.FindAllStringSubmatch(s.text, -1) {
		name, ok := strings.CutPrefix(parts[2], "#")
		if !ok {
			continue
		}
		i := slices.IndexFunc(o.sections, func(s section) bool { return s.anchor == strings.ToLower(name) })
		if i >= 0 && !slices.Contains(found, o.sections[i]) {
			found = append(found, o.sections[i])
		}
	}
	return found
}

// named returns the sections that a sentence refers to with "see". Short titles such as
// "Usage" are ambiguous and do not count.
func (o *outline) named(s sentence) []section {
	content := strings.ToLower(s.plain())
	var found []section
	for _, section := range o.sections {
		title := strings.ToLower(section.title)
		if len(title) < 8 {
			continue
		}
		before, after, ok := strings.Cut(content, title)
		if !ok || after != "" && 'a' <= after[0] && after[0] <= 'z' {
			continue
		}
		before = strings.TrimSuffix(strings.TrimSpace(before), " section")
		before = strings.TrimSuffix(before, " the")
		if strings.HasSuffix(before, "see") || strings.HasSuffix(before, "see also") {
			found = append(found, section)
		}
	}
	return found
}

// specParts returns Go's specification as Markdown, in parts, because it is too long for one
// task. Some distributions lack the specification; then there are no parts.
func specParts(root string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "doc", "go_spec.html"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parts(markdown(string(text))), nil
}

// parts splits a text into parts of whole chapters, each within the maximum length of a document.
func parts(text string) []string {
	var all []string
	lines := maxLines
	for _, chapter := range strings.Split(text, "\n## ")[1:] {
		chapter = "## " + chapter + "\n"
		size := strings.Count(chapter, "\n")
		if lines+size > maxLines {
			all, lines = append(all, ""), 0
		}
		all[len(all)-1] += chapter
		lines += size
	}
	return all
}

var (
	htmlHeading = regexp.MustCompile(`(?s)<h([2-6])[^>]*>(.*?)</h[2-6]>`)
	htmlLink    = regexp.MustCompile(`(?s)<a\s+href="(#[^"]*)">(.*?)</a>`)
	htmlCode    = regexp.MustCompile(`</?pre[^>]*>`)
	htmlItem    = regexp.MustCompile(`<li>\s*`)
	htmlTag     = regexp.MustCompile(`(?s)<!--.*?-->|</?[a-z][^>]*>`)
	manyBlank   = regexp.MustCompile(`\n\s*\n(\s*\n)+`)
)

// markdown converts a page of HTML to Markdown, as far as the specification needs it.
func markdown(page string) string {
	page = htmlHeading.ReplaceAllStringFunc(page, func(h string) string {
		parts := htmlHeading.FindStringSubmatch(h)
		return "\n" + strings.Repeat("#", int(parts[1][0]-'0')) + " " + strings.TrimSpace(parts[2]) + "\n"
	})
	var b strings.Builder
	for i, part := range htmlCode.Split(page, -1) {
		if i%2 == 1 {
			b.WriteString("\n```\n" + strings.Trim(htmlTag.ReplaceAllString(part, ""), "\n") + "\n```\n")
			continue
		}
		part = htmlLink.ReplaceAllStringFunc(part, func(a string) string {
			parts := htmlLink.FindStringSubmatch(a)
			return "[" + parts[2] + "](" + strings.ToLower(strings.ReplaceAll(parts[1], "_", "-")) + ")"
		})
		b.WriteString(htmlTag.ReplaceAllString(htmlItem.ReplaceAllString(part, "- "), ""))
	}
	return manyBlank.ReplaceAllString(html.UnescapeString(b.String()), "\n\n")
}
