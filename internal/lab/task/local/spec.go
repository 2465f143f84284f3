package local

import (
	"errors"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

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
