package prune

import "strings"

// readLogs finds what went wrong, stack traces, and which lines are one record.
func (o *outline) readLogs(l lines) {
	open := false // a trace
	for i := range l.len() {
		line := l.line(i)
		if saysFailure(line) {
			o.kinds[i] |= failure
		}
		if saysSevere(line) {
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
			// What a trace of Python ends with.
			o.kinds[i] |= trace
			open = false
		case open && o.is(i, blank) && i+1 < l.len() && isFrame(strings.TrimSpace(l.line(i+1))):
			o.kinds[i] |= trace
		case isFrame(text):
			o.kinds[i] |= trace
			open = true
			if i > 0 && !o.is(i-1, blank) {
				o.kinds[i-1] |= trace // the cause stands before the first frame
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

// saysFailure reports whether a line of a log has one of the words for what went
// wrong, in any case, and not only to say that nothing did.
func saysFailure(line string) bool {
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

// isNone reports whether what follows a word for a failure says that there is none, as
// records have it whose members are always the same: "error":null, errors=0.
func isNone(rest string) bool {
	rest = strings.TrimLeft(rest, "sS")
	value := strings.TrimLeft(rest, "\"' ")
	if value == "" || value[0] != ':' && value[0] != '=' {
		return false
	}
	value = strings.TrimLeft(value[1:], " ")
	for _, none := range [...]string{"null", "nil", "none", "<nil>", "false", "0", `""`, "''"} {
		if hasFold(value, none) && (len(value) == len(none) || !isLetter(value[len(none)]) && !isDigit(value[len(none)]) && value[len(none)] != '.') {
			return true
		}
	}
	return false
}

// saysSevere reports whether a line of a log has another word for what should not be.
func saysSevere(line string) bool {
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

// severities are words for what should not be, by their first letter.
var severities = func() (words [26][]string) {
	for word := range strings.FieldsSeq(`warn fatal critical crit panic severe alert emerg fail abort killed kill denied refused reject timeout timed
		unreachable unavailable exhausted corrupt invalid oom segfault core deadlock leak dropped lost retry retries`) {
		words[word[0]-'a'] = append(words[word[0]-'a'], word)
	}
	return words
}()

// template returns a line without what differs each time: numbers, and what has some in
// it, such as ids and times.
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
		strings.HasPrefix(text, "Exception in thread ") || strings.HasPrefix(text, "Caused by: ") || strings.HasPrefix(text, "thread '") && strings.Contains(text, "panicked at") ||
		strings.HasPrefix(text, "Unhandled exception")
}

// isFrame reports whether a line is a call in a stack trace.
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
	// main.run(0x1, 0x2) and /src/main.go:12 +0x1d of Go
	return strings.Contains(text, ".go:") && strings.Contains(text, " +0x") || strings.HasSuffix(text, ")") && strings.Contains(text, "(0x")
}
