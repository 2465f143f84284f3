package prune

import "strings"

// readLogs finds failures, stack traces, and the lines that belong to each record.
func (o *outline) readLogs(l lines) {
	open := false // in a trace
	for i := range l.len() {
		line := l.line(i)
		if hasFailureWord(line) {
			o.kinds[i] |= failure
		}
		if hasSevereWord(line) {
			o.kinds[i] |= severe
		}
		text := strings.TrimSpace(line)
		switch {
		case beginsTrace(text):
			o.kinds[i] |= trace
			open = true
		case open && (o.indent[i] > 0 && !o.is(i, blank) || isFrame(text)):
			o.kinds[i] |= trace
		case open && o.is(i, failure):
			// The last line of a Python trace.
			o.kinds[i] |= trace
			open = false
		case open && o.is(i, blank) && i+1 < l.len() && isFrame(strings.TrimSpace(l.line(i+1))):
			o.kinds[i] |= trace
		case isFrame(text):
			o.kinds[i] |= trace
			open = true
			if i > 0 && !o.is(i-1, blank) {
				o.kinds[i-1] |= trace // the cause precedes the first frame
			}
		default:
			open = false
		}
		if i > 0 && (o.indent[i] > 0 || o.is(i, blank)) {
			o.block[i] = o.blocks
			continue
		}
		o.blocks++
		o.block[i] = o.blocks
	}
	o.blocks++
}

// hasFailureWord reports whether a line has a word for a failure, ignoring case, but not if it says
// that there was no failure.
func hasFailureWord(line string) bool {
	for i := 0; i+5 <= len(line); i++ {
		switch line[i] | 0x20 {
		case 'e', 't':
			for _, word := range failures {
				named := i == 0 || !isLetter(line[i-1]) // not the end of a name, as in NullPointerException: null
				if hasFold(line[i:], word) && !(named && isNone(line[i+len(word):])) {
					return true
				}
			}
		}
	}
	return false
}

var failures = [...]string{"error", "exception", "traceback"}

// isNone reports whether a word for a failure is followed by an empty value, as in "error":null or
// errors=0.
func isNone(rest string) bool {
	rest = strings.TrimLeft(rest, "sS")
	value := strings.TrimLeft(rest, "\"' ")
	if value == "" || value[0] != ':' && value[0] != '=' {
		return false
	}
	value = strings.TrimLeft(value[1:], " ")
	for _, none := range [...]string{"null", "nil", "none", "<nil>", "false", "0", `""`, "''"} {
		if !hasFold(value, none) {
			continue
		}
		if len(value) == len(none) {
			return true
		}
		if c := value[len(none)]; !isLetter(c) && !isDigit(c) && c != '.' {
			return true
		}
	}
	return false
}

// hasSevereWord reports whether a line has another word for a problem.
func hasSevereWord(line string) bool {
	for i := 0; i < len(line); i++ {
		if !isLetter(line[i]) || i > 0 && isLetter(line[i-1]) {
			continue
		}
		for _, word := range severities[line[i]|0x20-'a'] {
			if hasFold(line[i:], word) {
				return true
			}
		}
	}
	return false
}

// severities are words for problems, by first letter.
var severities = func() (words [26][]string) {
	for word := range strings.FieldsSeq(`warn fatal critical crit panic severe alert emerg fail abort killed kill
		denied refused reject timeout timed
		unreachable unavailable exhausted corrupt invalid oom segfault core deadlock leak dropped lost retry retries`) {
		words[word[0]-'a'] = append(words[word[0]-'a'], word)
	}
	return words
}()

// template returns a line without variable parts: numbers, and words with digits such as ids and
// times.
func template(line string, into []byte) []byte {
	into = into[:0]
	for i := 0; i < len(line); {
		start, digits := i, false
		for i < len(line) && (isLetter(line[i]) || isDigit(line[i])) {
			digits = digits || isDigit(line[i])
			i++
		}
		switch {
		case digits:
			into = append(into, '0')
		case i > start:
			into = append(into, line[start:i]...)
		default:
			into = append(into, line[i])
			i++
		}
	}
	return into
}

func hasFold(text, prefix string) bool {
	return len(text) >= len(prefix) && strings.EqualFold(text[:len(prefix)], prefix)
}

func beginsTrace(text string) bool {
	return strings.HasPrefix(text, "Traceback (most recent call last)") || strings.HasPrefix(text, "panic: ") ||
		strings.HasPrefix(text, "fatal error: ") || strings.HasPrefix(text, "goroutine ") && strings.HasSuffix(text, "]:") ||
		strings.HasPrefix(text, "Exception in thread ") || strings.HasPrefix(text, "Caused by: ") ||
		strings.HasPrefix(text, "thread '") && strings.Contains(text, "panicked at") ||
		strings.HasPrefix(text, "Unhandled exception")
}

// isFrame reports whether a line is a stack frame.
func isFrame(text string) bool {
	switch {
	case strings.HasPrefix(text, "at "):
		return strings.ContainsAny(text, "(:")
	case strings.HasPrefix(text, "File \""):
		return strings.Contains(text, ", line ")
	case strings.HasPrefix(text, "... "):
		return strings.HasSuffix(text, " more")
	case strings.HasPrefix(text, "goroutine "):
		return strings.HasSuffix(text, "]:")
	case strings.HasPrefix(text, "created by "):
		return true
	}
	// Go: main.run(0x1, 0x2) and /src/main.go:12 +0x1d
	return strings.Contains(text, ".go:") && strings.Contains(text, " +0x") ||
		strings.HasSuffix(text, ")") && strings.Contains(text, "(0x")
}
