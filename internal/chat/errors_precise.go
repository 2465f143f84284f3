package chat

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// reach is how many characters at the beginning of a result, and bytes at its end, are examined.
const reach = 4 << 10

// maxMessage is the largest result in bytes that may be just an error message.
const maxMessage = 800

// reportsFailure reports whether a call failed, judged by the first and last lines of its result.
// Unlike mentionsError it ignores words in the middle of a text, which sources and logs have too.
func (c *Conversation) reportsFailure(r *result) bool {
	texts := c.texts[r.texts : r.texts+r.n]
	if len(texts) == 0 {
		return false
	}
	if texts[0].kind != jsonspan.String { // the tool returned an object
		fails, _ := objectFails(c.body[texts[0].start:texts[0].end])
		return fails
	}
	room := slices.Grow(c.scratch[:0], 6*reach) // 4 bytes per character, and the end
	head, whole := appendBeginning(room, c.text(texts[0]))
	for len(texts) > 1 && isBlank(head) {
		texts = texts[1:]
		head, whole = appendBeginning(room, c.text(texts[0]))
	}
	c.scratch = head[:0]
	room = head[len(head):]
	tail := appendEnding(room, c.text(texts[len(texts)-1]))
	for len(texts) > 1 && isBlank(tail) {
		texts = texts[:len(texts)-1]
		tail = appendEnding(room, c.text(texts[len(texts)-1]))
	}
	return textFails(head, tail, whole && len(texts) == 1)
}

func isBlank(text []byte) bool { return len(bytes.TrimSpace(text)) == 0 }

// appendBeginning appends the beginning of the decoded text, and reports whether that is all of it.
func appendBeginning(dst, body []byte) (text []byte, whole bool) {
	n := jsonspan.Advance(body, reach)
	return jsonspan.AppendText(dst, body[:n]), n == len(body)
}

// appendEnding appends the last lines of the decoded text to dst, which is empty.
func appendEnding(dst, body []byte) []byte {
	for size := reach + reach/4; ; size *= 2 {
		start := max(len(body)-size, 0)
		if escaped(body, start) {
			start++
		}
		text := jsonspan.AppendText(dst, body[start:])
		if start == 0 && len(text) <= reach {
			return text
		}
		// The first character may be incomplete, and so decoded wrongly.
		if start > 0 && len(text) < reach+2*maxEscape {
			continue
		}
		text = text[len(text)-reach:]
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			text = text[end+1:]
		}
		return text
	}
}

// textFails reports whether a text reports a failure, judged by its beginning and its end, which it
// overwrites. whole says that there is nothing between them.
func textFails(head, tail []byte, whole bool) bool {
	fails, object := objectFails(head)
	if fails || object && whole {
		return fails
	}
	message := whole && len(head) <= maxMessage
	var lines [maxFirstLines + maxLastLines][]byte
	first := firstLines(lines[:0:maxFirstLines], head)
	last := lastLines(lines[maxFirstLines:maxFirstLines], tail)
	if len(first) == 0 || len(last) == 0 {
		return false
	}
	code := unstated
	for _, line := range first {
		code = max(code, statedCode(line))
	}
	for _, line := range last[:min(len(last), maxCodeLines)] {
		code = max(code, statedCode(line))
	}
	if object { // it continues, perhaps on the same line
		end := last[0]
		return max(code, statedCode(end[max(len(end)-maxStatement, 0):])) == nonzero
	}
	last = withoutAgentLines(last)
	listing := len(last) == 0 || isNumbered(last[0])
	switch {
	case code == nonzero:
		return true
	case !listing && (endsInTrace(last) || slices.ContainsFunc(last, isFailedSummary)):
		return true
	case code == zero:
		return false
	case !listing && isError(lastStatement(last)), slices.ContainsFunc(first, isHeading):
		return true
	}
	return whole && (isTrace(first[0]) || hasAnyPrefix(first[0], "error: ")) ||
		message && !isNumbered(first[0]) && beginsAsError(first[0])
}

// How many lines are examined: at the beginning, at the end, and at the end for an exit code.
const (
	maxFirstLines = 4
	maxLastLines  = 16
	maxCodeLines  = 6
)

// outcomes are the members of an object that state the outcome of a call, and how to recognize a
// failure.
var outcomes = []struct {
	path  string
	fails func(literal []byte) bool
}{
	{"error", notEmpty},
	{"errors", notEmpty},
	{"isError", notEmpty},
	{"is_error", notEmpty},
	{"ok", isFalse},
	{"success", isFalse},
	{"status", isFailedStatus},
	{"exit_code", notEmpty},
	{"exitCode", notEmpty},
	{"returncode", notEmpty},
	{"return_code", notEmpty},
	{"metadata.exit_code", notEmpty},
}

var outcomePaths = func() *jsonspan.Paths {
	var paths []string
	for _, outcome := range outcomes {
		paths = append(paths, outcome.path)
	}
	return jsonspan.CompilePaths(paths...)
}()

// objectFails reports whether text begins with a JSON object, and whether the object reports a
// failure.
func objectFails(text []byte) (fails, isObject bool) {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) == 0 || text[0] != '{' {
		return false, false
	}
	err := outcomePaths.Find(text, func(path int, v jsonspan.Value) {
		fails = fails || outcomes[path].fails(text[v.Start:v.End])
	})
	isObject = err == nil || errors.Is(err, jsonspan.ErrDuplicate) || errors.Is(err, io.ErrUnexpectedEOF)
	return fails, isObject
}

// notEmpty reports whether a JSON value is not null, false, 0 or empty.
func notEmpty(literal []byte) bool {
	switch string(literal) {
	case "null", "false", "0", `""`:
		return false
	}
	if literal[0] == '{' || literal[0] == '[' {
		return len(bytes.TrimSpace(literal[1:len(literal)-1])) > 0
	}
	return true
}

func isFalse(literal []byte) bool { return string(literal) == "false" }

// isFailedStatus reports whether a status is a failure, as a word or HTTP status.
func isFailedStatus(literal []byte) bool {
	status := string(bytes.ToLower(bytes.Trim(literal, `"`)))
	switch status {
	case "error", "failed", "failure", "fail":
		return true
	}
	return len(status) == 3 && (status[0] == '4' || status[0] == '5') && digits(status) == 3
}

// simplify returns a line as a terminal shows it, without colors, in lower case and without
// surrounding blanks. It works in place.
func simplify(line []byte) []byte {
	line = bytes.TrimSpace(line)
	line = line[bytes.LastIndexByte(line, '\r')+1:]
	out := line[:0]
	for i := 0; i < len(line); i++ {
		b := line[i]
		if 'A' <= b && b <= 'Z' {
			b |= 0x20
		} else if b == 0x1b && i+1 < len(line) && line[i+1] == '[' {
			for i += 2; i < len(line) && (line[i] < '@' || line[i] > '~'); i++ {
			}
			continue
		}
		out = append(out, b)
	}
	return bytes.TrimSpace(out)
}

// firstLines appends the first non-blank lines, up to the capacity of dst.
func firstLines(dst [][]byte, text []byte) [][]byte {
	for len(text) > 0 && len(dst) < cap(dst) {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte("\n"))
		line = simplify(line)
		if len(line) > 0 {
			dst = append(dst, line)
		}
	}
	return dst
}

// lastLines appends the last non-blank lines, the last one first, up to the capacity of dst.
func lastLines(dst [][]byte, text []byte) [][]byte {
	for len(text) > 0 && len(dst) < cap(dst) {
		i := bytes.LastIndexByte(text, '\n')
		line := simplify(text[i+1:])
		text = text[:max(i, 0)]
		if string(line) == "</system-reminder>" { // added by the agent
			text = text[:max(bytes.LastIndex(text, []byte("<system-reminder>")), 0)]
		} else if len(line) > 0 {
			dst = append(dst, line)
		}
	}
	return dst
}

// withoutAgentLines removes the lines that agents add to the output of a command.
func withoutAgentLines(last [][]byte) [][]byte {
	for len(last) > 0 && isAgentLine(last[0]) {
		last = last[1:]
	}
	return last
}

func isAgentLine(line []byte) bool {
	switch end := line[len(line)-1]; line[0] {
	case '(':
		return end == ')'
	case '[':
		return end == ']' && !hasAnyPrefix(line, "[error")
	case '<':
		return hasAnyPrefix(line, "</") && end == '>'
	}
	return string(line) == "bash-$" || string(line) == "```" || statedCode(line) != unstated ||
		hasAnyPrefix(line, "shell cwd was reset", "error: (none)", "signal: ", "background pids: ", "process group ")
}

// lastStatement returns the last line that is not source code quoted by a compiler or a hint.
func lastStatement(last [][]byte) []byte {
	for _, line := range last {
		number := len(line) - len(bytes.TrimLeft(line, "0123456789 "))
		quoted := number < len(line) && strings.IndexByte("^~|", line[number]) >= 0
		if !quoted && !hasAnyPrefix(line, "hint: ", "note: ", "= ", "[notice] ", "╰") {
			return line
		}
	}
	return last[0]
}

// A code is the exit code of a command that a text states.
type code uint8

const (
	unstated code = iota
	zero
	nonzero
)

// maxStatement is the longest line that states an exit code.
const maxStatement = 120

var codeWords = [][]byte{
	[]byte("exit code"), []byte("exit_code"), []byte("exitcode"), []byte("exit status"), []byte("exit value"),
	[]byte("exited with"), []byte("exit: "), []byte("returncode"), []byte("return code"),
}

// statedCode returns the exit code that a line states, if it states nothing else.
func statedCode(line []byte) code {
	if len(line) > maxStatement || isNumbered(line) {
		return unstated
	}
	for _, word := range codeWords {
		i := bytes.Index(line, word)
		if i < 0 {
			continue
		}
		rest := line[i+len(word):]
		for _, filler := range [...]string{" code", " status", " was", " of", " is"} {
			rest = bytes.TrimPrefix(rest, []byte(filler))
		}
		rest = bytes.TrimLeft(rest, ` :="'>-`)
		n := digits(string(rest[:min(len(rest), 12)]))
		switch {
		case n == 0, len(rest)-n > 40:
		case len(bytes.Trim(rest[:n], "0")) == 0:
			return zero
		default:
			return nonzero
		}
	}
	return unstated
}

// digits returns the number of digits at the beginning of text.
func digits(text string) int {
	n := 0
	for n < len(text) && '0' <= text[n] && text[n] <= '9' {
		n++
	}
	return n
}

// isNumbered reports whether a line belongs to a listing: it begins with a number, as from cat -n,
// grep -n, or agents' file views.
func isNumbered(line []byte) bool {
	n := digits(string(line[:min(len(line), 8)]))
	if n == 0 || n == len(line) {
		return n > 0
	}
	switch rest := line[n:]; rest[0] {
	case '\t', '|':
		return true
	case ':':
		return digits(string(rest[1:min(len(rest), 3)])) < 2 // not a time
	default:
		return hasAnyPrefix(rest, "  ", "→")
	}
}

// endsInTrace reports whether the last lines are a stack trace.
func endsInTrace(last [][]byte) bool {
	for i, line := range last {
		if isNumbered(line) {
			return false
		}
		if i < 3 && isFrame(line) || i < 8 && isTrace(line) {
			return true
		}
	}
	return false
}

// isTrace reports whether a line belongs to a trace of Python, Go or Rust, which other lines may
// follow.
func isTrace(line []byte) bool {
	return hasAnyPrefix(line, "traceback (most recent call last)", "panic: ") ||
		hasAnyPrefix(line, "file \"") && bytes.Contains(line, []byte(", line ")) ||
		hasAnyPrefix(line, "goroutine ") && hasAnySuffix(line, "]:") ||
		hasAnyPrefix(line, "thread '") && bytes.Contains(line, []byte(" panicked at "))
}

// isFrame reports whether a line is a stack frame of Java, JavaScript, C# or Ruby.
func isFrame(line []byte) bool {
	switch end := line[len(line)-1]; {
	case hasAnyPrefix(line, "at "):
		return end == ')' || '0' <= end && end <= '9' && bytes.IndexByte(line, ':') > 0
	case hasAnyPrefix(line, "... "):
		return hasAnySuffix(line, " more")
	case hasAnyPrefix(line, "from "):
		return bytes.Contains(line, []byte(":in "))
	}
	return hasAnyPrefix(line, "caused by: ")
}

// isFailedSummary reports whether a line is the summary of failed tests or a failed build.
func isFailedSummary(line []byte) bool {
	if len(line) > maxSummary || isNumbered(line) {
		return false
	}
	return string(line) == "fail" ||
		hasAnyPrefix(line, "fail\t", "--- fail: ", "failed (", "test result: failed", "make: ***", "ninja: build stopped",
			"npm err!", "npm error", "error: could not compile", "collect2: error", "compilation terminated") ||
		bytes.Contains(line, []byte("build failure")) || bytes.Contains(line, []byte("build failed")) ||
		countsFailures(line)
}

// maxSummary is the longest summary line.
const maxSummary = 200

// countsFailures reports whether a line has a nonzero number of failures or errors, such as "1
// failed, 2 passed", "errors: 3" or "failures=1".
func countsFailures(line []byte) bool {
	for i := range line {
		if line[i] != 'f' && line[i] != 'e' || i > 0 && 'a' <= line[i-1] && line[i-1] <= 'z' {
			continue
		}
		for _, word := range [...]string{"failed", "failing", "failures", "failure", "errors", "error"} {
			after, found := bytes.CutPrefix(line[i:], []byte(word))
			if !found {
				continue
			}
			if endsInCount(line[:i]) && endsCount(after) || beginsItem(line[:i]) && isCount(after) {
				return true
			}
			break
		}
	}
	return false
}

// endsInCount reports whether a text ends with a number above 0, as a word.
func endsInCount(text []byte) bool {
	text, spaced := bytes.CutSuffix(text, []byte(" "))
	rest := bytes.TrimRight(text, "0123456789")
	return spaced && len(bytes.TrimLeft(text[len(rest):], "0")) > 0 &&
		(len(rest) == 0 || strings.IndexByte(" (,|=", rest[len(rest)-1]) >= 0)
}

// endsCount reports whether the counted word is not the beginning of a longer name, such as "failed
// attempts".
func endsCount(after []byte) bool {
	return len(after) == 0 || strings.IndexByte(",;)|", after[0]) >= 0 || string(after) == "." ||
		hasAnyPrefix(after, ". ", " in ", " (", " |", " =", " and ", " generated", " found", " of ", " out of ", " total")
}

// beginsItem reports whether the end of text is the beginning of a line or of a list item.
func beginsItem(text []byte) bool { return len(text) == 0 || hasAnySuffix(text, "(", ", ") }

// isCount reports whether a text begins with = or : and a number above 0.
func isCount(text []byte) bool {
	if len(text) < 2 || text[0] != '=' && text[0] != ':' {
		return false
	}
	text = bytes.TrimLeft(text[1:], " ")
	n := digits(string(text[:min(len(text), 12)]))
	return len(bytes.TrimLeft(text[:n], "0")) > 0
}

// isHeading reports whether a line announces errors below it.
func isHeading(line []byte) bool { return string(line) == "error:" || string(line) == "errors:" }

// isError reports whether the last line of a text reports an error.
func isError(line []byte) bool {
	line = bytes.TrimLeftFunc(line, isSymbol)
	if name, message, found := bytes.Cut(line, []byte(": ")); found && isErrorName(name) {
		switch string(message) {
		case "(none)", "none", "null", "0":
			return false
		}
		return true
	}
	if hasAnyPrefix(line, "error ", "error[", "fatal: ", "failed to ", "e: ", "[error]", "curl: (", "segmentation fault",
		"/bin/sh: ", "/bin/bash: ", "bash: ", "sh: ", "zsh: ", "aborted (core dumped)", "command timed out",
		"automatic merge failed") ||
		len(line) <= maxErrorName && hasAnySuffix(line, ": not found", " failed", " failed.", " failed!") {
		return true
	}
	for _, phrase := range [...]string{": error: ", ": fatal error: ", "): error ", "an error occurred"} {
		if bytes.Contains(line, []byte(phrase)) {
			return true
		}
	}
	for _, reason := range [...]string{
		"no such file or directory", "permission denied", "command not found", "connection refused",
	} {
		_, after, found := bytes.Cut(line, []byte(reason))
		if found && (len(after) == 0 || strings.IndexByte(":. ", after[0]) >= 0) {
			return true
		}
	}
	return false
}

// isSymbol reports whether a character is a blank or a symbol such as ✗.
func isSymbol(r rune) bool { return r == ' ' || r > unicode.MaxASCII && !unicode.IsLetter(r) }

// isErrorName reports whether the text before a colon names an error, such as java.io.IOException,
// and is not source code.
func isErrorName(name []byte) bool {
	return len(name) <= maxErrorName && !bytes.ContainsAny(name, "\"'`(=") &&
		hasAnySuffix(name, "error", "exception", "failed", "failure", "notfound")
}

// maxErrorName is the longest name of an error.
const maxErrorName = 100

// beginsAsError reports whether the first line of a short text reports an error.
func beginsAsError(line []byte) bool {
	return isError(line) || hasAnyPrefix(line, "error", "traceback", "exception", "failed", "failure", "fatal", "<error",
		"invalid ", "unable to ", "cannot ", "could not ", "access denied", "enoent", "mcp error", "unknown tool",
		"<tool_use_error")
}

func hasAnyPrefix(line []byte, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if len(line) >= len(prefix) && string(line[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

func hasAnySuffix(line []byte, suffixes ...string) bool {
	for _, suffix := range suffixes {
		if len(line) >= len(suffix) && string(line[len(line)-len(suffix):]) == suffix {
			return true
		}
	}
	return false
}
