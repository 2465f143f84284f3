package mcpconsole

import (
	"regexp"
	"strconv"

	"github.com/dustin/go-humanize"
)

// A part is a piece of a text that was cut: something that is left, or a gap.
type part struct {
	Text   string
	Gap    string // what is missing, in words; "" if it is not a gap
	Handle string // of the whole text, if it may be kept
}

// markers finds what stands in the place of what was cut: see internal/mask, internal/focus and internal/jsoncut.
var markers = regexp.MustCompile(`(?:\.\.\. )?\[KIMI_PROXY_OBSERVATION_MASKED original_chars=(?P<original>\d+)` +
	`(?: head=(?P<head>\d+) tail=(?P<tail>\d+)| lines=(?P<kept>\d+)/(?P<lines>\d+))?` +
	`(?: id=(?P<id>obs_\w+))?[^\]\n]{0,300}\](?:[^\n]{0,300} \.\.\.)?` +
	`|\[lines? (?P<first>\d+)(?:-(?P<last>\d+))? left out\]` +
	`|\.\.\. \[(?P<left>\d+)(?: of (?P<of>\d+))? (?P<unit>items|members|lines|characters of media|characters) left out` +
	`(?: id=(?P<handle>obs_\w+))?[^\]\n]{0,300}\] \.\.\.`)

// gaps takes a text that was cut apart. Anything can be in it: what looks like a marker is shown as one.
func gaps(text string) []part {
	var parts []part
	at := 0
	for _, match := range markers.FindAllStringSubmatchIndex(text, -1) {
		found := func(name string) string {
			i := markers.SubexpIndex(name)
			if match[2*i] < 0 {
				return ""
			}
			return text[match[2*i]:match[2*i+1]]
		}
		gap := missing(found)
		if gap == "" {
			continue
		}
		if match[0] > at {
			parts = append(parts, part{Text: text[at:match[0]]})
		}
		parts = append(parts, part{Text: text[match[0]:match[1]], Gap: gap, Handle: found("id") + found("handle")})
		at = match[1]
	}
	if at < len(text) || len(parts) == 0 {
		parts = append(parts, part{Text: text[at:]})
	}
	return parts
}

// missing says in words what a marker stands for; "" if it contradicts itself.
func missing(found func(name string) string) string {
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
