package history

import (
	"regexp"
	"strconv"
	"strings"
)

// A modification is what a commit has done to a file that was there before and after.
// Lines are counted from 1, and are those of the file before.
type modification struct {
	path     string
	changed  []int // or removed
	inserted []int // the lines after which others went in
}

// relevant returns the lines that the commit was about: those that it changed, or else
// those beside which it wrote.
func (m *modification) relevant() []int {
	if len(m.changed) > 0 {
		return m.changed
	}
	return m.inserted
}

// hunkHeader has the position and the number of the lines before and the number of
// those after. A number that is missing is 1.
var hunkHeader = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@`)

// parseDiff reads a diff of git without context. Files with names that git must quote
// are left out.
func parseDiff(diff string) []modification {
	var (
		all  []modification
		file *modification
	)
	for rest := diff; rest != ""; {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		if strings.HasPrefix(line, "diff ") {
			file = nil
		}
		if path, ok := strings.CutPrefix(line, "--- a/"); ok {
			// A tab ends a name that has spaces.
			all = append(all, modification{path: strings.TrimSuffix(path, "\t")})
			file = &all[len(all)-1]
		}
		hunk := hunkHeader.FindStringSubmatch(line)
		if hunk == nil {
			continue
		}
		at, before, after := count(hunk[1]), count(hunk[2]), count(hunk[3])
		// Lines of the file may look like anything, so they are not looked at.
		for range before + after {
			_, rest, _ = strings.Cut(rest, "\n")
		}
		if file != nil {
			file.add(at, before)
		}
	}
	return all
}

func (m *modification) add(at, before int) {
	if before == 0 {
		// What goes in before the first line is said to go in after line 0.
		m.inserted = append(m.inserted, max(at, 1))
	}
	for i := range before {
		m.changed = append(m.changed, at+i)
	}
}

// count reads a number of a hunk's header.
func count(digits string) int {
	if digits == "" {
		return 1
	}
	n, _ := strconv.Atoi(digits)
	return n
}
