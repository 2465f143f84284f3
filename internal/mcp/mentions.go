package mcp

import "strings"

// Limits of Mentions: the number of URIs, and the length of each in bytes.
const maxMentions, longestMention = 64, 1 << 10

// Mentions returns the URIs with an authority that occur in a text, one per line. A URI ends at the
// first character that URIs cannot contain. Punctuation at its end is not part of it.
func Mentions(text string) string {
	var found []string
	for len(found) < maxMentions {
		i := strings.Index(text, "://")
		if i < 0 {
			break
		}
		start := i
		for start > 0 && inScheme(text[start-1]) {
			start--
		}
		end := len(text)
		if n := strings.IndexFunc(text[i:], notInURI); n >= 0 {
			end = i + n
		}
		uri := strings.TrimRight(text[start:end], ".,;:!?')]*_")
		if start < i && i+len("://") < start+len(uri) && len(uri) <= longestMention {
			found = append(found, uri)
		}
		text = text[end:]
	}
	return strings.Join(found, "\n")
}

// IsMentioned reports whether a URI is one of those that Mentions returned.
func IsMentioned(mentions, uri string) bool {
	for line := range strings.SplitSeq(mentions, "\n") {
		if line == uri {
			return uri != ""
		}
	}
	return false
}

func inScheme(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("+-.", c) >= 0
}

func notInURI(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune("\"<>\\^`{|}", c) }
