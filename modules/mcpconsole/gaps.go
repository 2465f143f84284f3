package mcpconsole

import (
	"regexp"
	"strconv"
	"sync"

	"github.com/dustin/go-humanize"
)

// A part is a piece of a shortened text: kept text or a gap.
type part struct {
	Text   string
	Gap    string // description of a gap, else ""
	Handle string // handle of the original, if the marker has one
}

// markers matches the markers of internal/mask, internal/focus and internal/jsoncut. It takes
// milliseconds to compile, for which commands without a console should not wait.
var markers = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(markerPattern) })

const markerPattern = `(?:\.\.\. )?\[KIMI_PROXY_OBSERVATION_MASKED original_chars=(?P<original>\d+)` +
	`(?: head=(?P<head>\d+) tail=(?P<tail>\d+)| lines=(?P<kept>\d+)/(?P<lines>\d+))?` +
	`(?: id=(?P<id>obs_\w+))?[^\]\n]{0,300}\](?:[^\n]{0,300} \.\.\.)?` +
	`|\[lines? (?P<first>\d+)(?:-(?P<last>\d+))? left out\]` +
	`|\.\.\. \[(?P<left>\d+)(?: of (?P<of>\d+))? (?P<unit>items|members|lines|characters of media|characters) left out` +
	`(?: id=(?P<handle>obs_\w+))?[^\]\n]{0,300}\] \.\.\.`

// splitGaps splits a shortened text at its markers. It cannot distinguish a marker from a text of
// the server that looks like one.
func splitGaps(text string) []part {
	var parts []part
	end, markers := 0, markers()
	for _, match := range markers.FindAllStringSubmatchIndex(text, -1) {
		found := func(name string) string {
			i := markers.SubexpIndex(name)
			if match[2*i] < 0 {
				return ""
			}
			return text[match[2*i]:match[2*i+1]]
		}
		gap := gapText(found)
		if gap == "" {
			continue
		}
		if match[0] > end {
			parts = append(parts, part{Text: text[end:match[0]]})
		}
		parts = append(parts, part{Text: text[match[0]:match[1]], Gap: gap, Handle: found("id") + found("handle")})
		end = match[1]
	}
	if end < len(text) || len(parts) == 0 {
		parts = append(parts, part{Text: text[end:]})
	}
	return parts
}

// gapText describes a gap from the fields of its marker, "" if they are inconsistent.
func gapText(found func(name string) string) string {
	n := func(name string) int64 {
		n, _ := strconv.ParseInt(found(name), 10, 64)
		return n
	}
	counted := func(n int64, unit string) string {
		if n <= 0 {
			return ""
		}
		return humanize.Comma(n) + " " + unit
	}
	switch {
	case found("lines") != "":
		return counted(n("lines")-n("kept"), "of "+humanize.Comma(n("lines"))+" lines are missing")
	case found("head") != "":
		return counted(n("original")-n("head")-n("tail"), "characters are missing")
	case found("original") != "":
		return counted(n("original"), "characters were shortened")
	case found("last") != "":
		return counted(n("last")-n("first")+1, "lines are missing")
	case found("first") != "":
		return "1 line is missing"
	case found("of") != "":
		return counted(n("left"), "of "+humanize.Comma(n("of"))+" "+found("unit")+" are missing")
	}
	return counted(n("left"), found("unit")+" are missing")
}
