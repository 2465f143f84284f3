package redis

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The reader splits a stream at the same places in whatever parts it arrives, and an independent
// parser finds the same messages.
func FuzzMessageReader(f *testing.F) {
	for _, text := range []string{
		"+OK\r\n-ERR no\r\n:1\r\n_\r\n#t\r\n,1.5\r\n(12\r\n",
		"$-1\r\n$0\r\n\r\n$5\r\na\r\nbc\r\n=7\r\ntxt:abc\r\n!3\r\nERR\r\n",
		"*2\r\n$9\r\nsubscribe\r\n*1\r\n:1\r\n*-1\r\n*0\r\n",
		"%1\r\n+a\r\n~2\r\n:1\r\n#f\r\n>2\r\n*1\r\n+message\r\n+x\r\n",
		"*1\r\n>1\r\n+x\r\n", "*-2\r\n", "%-1\r\n", "$?\r\n", "+a\n", "$600000000\r\n", "*1048577\r\n", "|1\r\n", "$+1\r\n",
		strings.Repeat("*1\r\n", 17), strings.Repeat("*1\r\n", 16) + ":1\r\n",
	} {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, part int) {
		want, ok := parseMessages(text)
		for _, size := range []int{len(text), 1, part} {
			var r messageReader
			var got []message
			var err error
			for some := range slices.Chunk([]byte(text), min(max(size, 1), len(text)+1)) {
				if err = r.read(some, func(m *message) error {
					got = append(got, message{m.kind, slices.Clone(m.text), m.values})
					return nil
				}); err != nil {
					break
				}
			}
			if (err == nil) != ok || err != nil && !errors.Is(err, errMalformed) {
				t.Errorf("in parts of %d: %v, want ok %t", size, err, ok)
			}
			if !slices.EqualFunc(got, want, func(a, b message) bool {
				return a.kind == b.kind && string(a.text) == string(b.text) && a.values == b.values
			}) {
				t.Errorf("in parts of %d: got %v, want %v", size, got, want)
			}
		}
	})
}

// parseMessages returns the complete messages of a stream up to a malformed one.
func parseMessages(text string) (all []message, ok bool) {
	for text != "" {
		m := message{kind: text[0]}
		left, values, state := parseValue(text, &m, 0, true)
		switch {
		case state == malformed || values > maxValues:
			return all, false
		case state == incomplete:
			return all, true
		}
		all, text = append(all, m), left
	}
	return all, true
}

type parseState int

const (
	complete parseState = iota
	incomplete
	malformed
)

// parseValue parses a value at a depth. It returns the text after it and the values in it, and keeps
// its text if it is the first.
func parseValue(text string, m *message, depth int, first bool) (left string, values int, state parseState) {
	keep := func(text string) {
		if first && depth <= 1 {
			m.text = []byte(text)
		}
	}
	if text == "" {
		return "", 0, incomplete
	}
	if skip := map[byte]int{'_': 3, '#': 4}[text[0]]; skip > 0 {
		if len(text) < skip {
			return "", 0, incomplete
		}
		return text[skip:], 0, complete
	}
	end := strings.IndexByte(text, '\n') + 1
	switch {
	case end > maxLine, end == 0 && len(text) > maxLine:
		return "", 0, malformed
	case end == 0:
		return "", 0, incomplete
	case end < 3 || text[end-2] != '\r':
		return "", 0, malformed
	}
	kind, line, left := text[0], text[1:end-2], text[end:]
	switch kind {
	case '+', '-', ',', '(':
		keep(line)
		return left, 0, complete
	case ':':
		return left, 0, complete
	}
	n, err := strconv.Atoi(line)
	if err != nil {
		return "", 0, malformed
	}
	switch kind {
	case '$', '=', '!':
		switch {
		case n == -1:
			return left, 0, complete
		case n < 0 || n > maxString:
			return "", 0, malformed
		case len(left) < n+2:
			return "", 0, incomplete
		}
		keep(left[:min(n, keptText)])
		return left[n+2:], 0, complete
	case '*', '~', '>', '%':
		if n == -1 && kind != '%' {
			return left, 0, complete
		}
		if n < 0 || n > maxValues || depth == maxNested || kind == '>' && depth > 0 {
			return "", 0, malformed
		}
		if kind == '%' {
			n *= 2
		}
		if n > maxValues {
			return "", 0, malformed
		}
		if depth == 0 {
			m.values = n
		}
		values = n
		for i := range n {
			var inner int
			left, inner, state = parseValue(left, m, depth+1, first && i == 0)
			values += inner
			if values > maxValues {
				return "", values, malformed
			}
			if state != complete {
				return "", values, state
			}
		}
		return left, values, complete
	}
	return "", 0, malformed
}
