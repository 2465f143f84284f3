package mcp

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Naming says how the names of servers and of their tools and prompts become one
// name.
type Naming struct {
	Separator string // "": there is one server, and names are as they are
	Longest   int    // the longest a joined name may be, in bytes; 0: any length
}

const (
	digestLength = 10 // of the end of a shortened name, which keeps it apart from others
	minOwn       = 16 // of a joined name, what a server must leave to its tools
	maxSeparator = 8
)

// digestText has letters and digits only, because hosts refuse much else in a name.
var digestText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567")

// Join returns the name under which clients know a tool or prompt of a server.
//
// One that is too long ends in a digest of what it stands for. So does one that
// only looks as if it did: else a server could offer a tool under the shortened
// name of another. The server, which Check found short enough, always stays whole.
func (n Naming) Join(server, name string) string {
	if n.Separator == "" {
		return name
	}
	joined := server + n.Separator + name
	if n.Longest == 0 || len(joined) <= n.Longest && !n.MayBeShort(joined) {
		return joined
	}
	prefix := len(server) + len(n.Separator)
	room := max(n.Longest-digestLength-1, prefix)
	cut := min(room, len(joined))
	for cut > prefix && cut < len(joined) && !utf8.RuneStart(joined[cut]) {
		cut--
	}
	// What a character that is cut leaves free is filled up, for a shortened name is
	// recognized by its length.
	return joined[:cut] + strings.Repeat("_", room-cut+1) + digest(server, name)
}

func digest(server, name string) string {
	sum := sha256.Sum256([]byte(server + "\x00" + name))
	return digestText.EncodeToString(sum[:])[:digestLength]
}

// MayBeShort reports whether a joined name may be a shortened one. What it stands
// for is then to be found in the server's list: it is the name that Join makes the
// same of.
func (n Naming) MayBeShort(joined string) bool {
	if n.Separator == "" || n.Longest == 0 || len(joined) != n.Longest || len(joined) <= digestLength {
		return false
	}
	end := joined[len(joined)-digestLength-1:]
	return end[0] == '_' && strings.Trim(end[1:], "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// Split returns whose tool or prompt a joined name means, and how it is called
// there. Names are also understood as people write them, with [Separator]. A name
// of a server has no separator in it, so the first one divides; what follows may
// have more.
func (n Naming) Split(joined string, known func(server string) bool) (server, name string, ok bool) {
	if n.Separator == "" {
		return "", "", false
	}
	for _, separator := range []string{n.Separator, Separator} {
		if server, name, ok = strings.Cut(joined, separator); ok && known(server) {
			return server, name, true
		}
	}
	return "", "", false
}

// Check reports why a server cannot have this name.
func (n Naming) Check(server string) error {
	if server == "" {
		return errors.New("name is empty")
	}
	for _, separator := range []string{n.Separator, Separator} {
		switch {
		case separator == "":
		case strings.Contains(server, separator):
			return fmt.Errorf("name: %q has %s in it, which divides servers from tools", server, separator)
		case strings.Index(server+separator, separator) != len(server):
			return fmt.Errorf("name: %q ends as %s begins, which divides servers from tools: the end of the name is ambiguous",
				server, separator)
		}
	}
	if n.Separator == "" || n.Longest == 0 {
		return nil
	}
	if most := n.Longest - len(n.Separator) - minOwn; len(server) > most {
		return fmt.Errorf("name: %q has %d characters, and max_name_length %d leaves room for %d",
			server, len(server), n.Longest, max(most, 0))
	}
	return nil
}

// CheckSeparator reports why the separator cannot be one.
func (n Naming) CheckSeparator() error {
	if n.Separator == "" {
		return nil
	}
	if len(n.Separator) > maxSeparator {
		return fmt.Errorf("separator: %q is longer than %d characters", n.Separator, maxSeparator)
	}
	if n.Separator != Separator && strings.Contains(n.Separator, ":") {
		// Tools can always be called with ::, which would be read in another way.
		return fmt.Errorf("separator: %q has a colon in it, which only %s can", n.Separator, Separator)
	}
	plain := true
	for _, c := range n.Separator {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.ContainsRune("_.:/-", c):
			plain = false
		default:
			return fmt.Errorf("separator: %q has a %q in it; it can have letters, digits and _ . : / -", n.Separator, c)
		}
	}
	if plain {
		return fmt.Errorf("separator: %q has only letters and digits, as names have themselves", n.Separator)
	}
	return nil
}

// longestName is how many characters names may have to be repeated, in logs and to
// whoever sent them. The protocol allows 128.
const longestName = 256

// Shortened returns a name that somebody has sent as it may be repeated.
func Shortened(name string) string {
	chars := 0
	for i := range name {
		if chars == longestName {
			return strings.ToValidUTF8(name[:i], "") + "…"
		}
		chars++
	}
	return name
}

// longestLine is how many characters an error of a server may have in logs and in the admin API.
const longestLine = 500

// OneLine returns a text of a server as operators may read it: on one line, not too long, and with
// control characters escaped, which terminals may follow.
func OneLine(text string) string {
	text = colors.ReplaceAllString(strings.TrimSpace(text), "")
	var line strings.Builder
	chars := 0
	for _, r := range text {
		if chars++; chars > longestLine {
			line.WriteString("…")
			break
		}
		switch {
		case r == '\t':
			line.WriteByte(' ')
		case strconv.IsPrint(r):
			line.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			line.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return line.String()
}

// colors are escape sequences by which programs color their output.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")
