package prune

import (
	"strings"
)

// A kind is a set of properties of a line, as far as its looks tell.
type kind uint16

const (
	blank      kind = 1 << iota
	bracket         // only punctuation
	comment         // or part of one
	header          // beginning of a file
	imported        // an import, or part of one
	decorator       // of the definition that follows
	definition      // of a function, a type or a module
	heading         // of a section
	fenced          // part of a fenced block
	joined          // kept or removed together with the line before
	failure         // in a log: reports that something failed
	severe          // in a log: reports something severe
	trace           // in a log: part of a stack trace
)

// An outline says how the lines of a text belong together.
type outline struct {
	kinds  []kind
	indent []int

	// The line of the definition or heading that a line is under, or -1. A definition is under the
	// enclosing one.
	parent []int

	// The block of a line: the lines of one definition, heading or log record, without those inside
	// it. Numbered from 0.
	block  []int
	blocks int

	// The paragraph of a line: a run without blank lines.
	paragraph  []int
	paragraphs int
}

func (o *outline) is(i int, k kind) bool { return o.kinds[i]&k != 0 }

// head returns the definition or heading of line i, which may be line i itself, or -1.
func (o *outline) head(i int) int {
	if o.is(i, definition|heading) {
		return i
	}
	return o.parent[i]
}

// outlineOf returns the outline of a text, or nil if stopped.
func outlineOf(l lines, source Source, stopped func() bool) *outline {
	n := l.len()
	o := &outline{
		kinds:     make([]kind, n),
		indent:    make([]int, n),
		parent:    make([]int, n),
		block:     make([]int, n),
		paragraph: make([]int, n),
	}
	for i := range n {
		if i%stride == 0 && stopped() {
			return nil
		}
		line := l.line(i)
		rest := strings.TrimLeft(line, " \t\f\v")
		o.indent[i] = columns(line[:len(line)-len(rest)])
		o.parent[i] = -1
		switch {
		case strings.TrimSpace(rest) == "":
			o.kinds[i] = blank
		case isPunctuation(rest):
			o.kinds[i] = bracket
		}
	}
	switch source {
	case Code:
		o.readCode(l)
	case Docs:
		o.readDocs(l)
	case Logs:
		o.readLogs(l)
	}
	o.numberParagraphs()
	return o
}

// stride is how many lines are read between checks of stopped.
const stride = 1024

// columns returns the width of leading white space; a tab has four columns.
func columns(space string) int {
	return len(space) + 3*strings.Count(space, "\t")
}

func isPunctuation(text string) bool {
	for i := 0; i < len(text); i++ {
		if c := text[i]; isLetter(c) || isDigit(c) || c == '_' || c >= 0x80 {
			return false
		}
	}
	return true
}

func (o *outline) numberParagraphs() {
	for i := range o.kinds {
		starts := o.is(i, definition|heading) && i > 0 && !o.is(i-1, comment|decorator)
		if i > 0 && (o.is(i, blank) != o.is(i-1, blank) || starts) {
			o.paragraphs++
		}
		o.paragraph[i] = o.paragraphs
	}
	o.paragraphs++
}
