package history

import (
	"regexp"
	"strconv"
	"strings"
)

// A modification is the change of a commit to a file that exists before and after it. Line
// numbers start at 1 and refer to the file before.
type modification struct {
	path     string
	changed  []int // changed or removed lines
	inserted []int // lines after which others were inserted
}

// relevant returns the lines that the commit is about: those that it changed, or else those
// after which it inserted others.
func (m *modification) relevant() []int {
	if len(m.changed) > 0 {
		return m.changed
	}
	return m.inserted
}

// hunkHeader matches the position and number of the old lines and the number of the new
// lines. A missing number is 1.
var hunkHeader = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@`)

// parseDiff parses a diff of git without context. It skips files whose names git quotes.
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
		start, before, after := count(hunk[1]), count(hunk[2]), count(hunk[3])
		// Skip the lines, which may look like a header.
		for range before + after {
			_, rest, _ = strings.Cut(rest, "\n")
		}
		if file != nil {
			file.add(start, before)
		}
	}
	return all
}

func (m *modification) add(start, before int) {
	if before == 0 {
		// For an insertion before the first line, git reports line 0.
		m.inserted = append(m.inserted, max(start, 1))
	}
	for i := range before {
		m.changed = append(m.changed, start+i)
	}
}

// count parses a number in a hunk header.
func count(digits string) int {
	if digits == "" {
		return 1
	}
	n, _ := strconv.Atoi(digits)
	return n
}
