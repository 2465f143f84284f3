package mcp

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Annotations describe the effects of a tool. They are hints: a server may be wrong, or lie.
type Annotations uint8

// Annotations of tools.
const (
	ReadOnly    Annotations = 1 << iota // changes nothing
	Destructive                         // may change or remove existing data, not only add to it
	Idempotent                          // repeating a call has no further effect
	OpenWorld                           // interacts with the outside world, as a web search does
)

// Unannotated are the defaults of the specification, for a tool without annotations.
const Unannotated = Destructive | OpenWorld

// annotationNames are the names of annotations in rules, and in definitions of tools.
var annotationNames = []struct {
	bit        Annotations
	name, hint string
}{
	{ReadOnly, "read_only", "readOnlyHint"},
	{Destructive, "destructive", "destructiveHint"},
	{Idempotent, "idempotent", "idempotentHint"},
	{OpenWorld, "open_world", "openWorldHint"},
}

// ParseAnnotation returns the annotation with a name in rules.
func ParseAnnotation(name string) (a Annotations, ok bool) {
	for _, known := range annotationNames {
		if known.name == name {
			return known.bit, true
		}
	}
	return 0, false
}

// AnnotationNames returns the names of annotations in rules.
func AnnotationNames() (names []string) {
	for _, a := range annotationNames {
		names = append(names, a.name)
	}
	return names
}

// Hint returns the name of one annotation in definitions of tools.
func (a Annotations) Hint() string {
	for _, known := range annotationNames {
		if known.bit == a {
			return known.hint
		}
	}
	return ""
}

// Hints calls f for each annotation, by its name in definitions of tools.
func (a Annotations) Hints(f func(hint string, on bool)) {
	for _, known := range annotationNames {
		f(known.hint, a&known.bit != 0)
	}
}

// String returns the names of the set annotations.
func (a Annotations) String() string {
	var set []string
	for _, known := range annotationNames {
		if a&known.bit != 0 {
			set = append(set, known.name)
		}
	}
	return strings.Join(set, " ")
}

// ReadAnnotations reads the annotations in the definition of a tool. The defaults of the
// specification apply to those that are missing or not boolean, and to all of them if the
// definition is ambiguous.
func ReadAnnotations(tool []byte) Annotations {
	var object []byte
	for m := range jsonspan.Members(tool) {
		if m.Key != "annotations" {
			continue
		}
		if object != nil {
			return Unannotated
		}
		object = tool[m.Value.Start:m.End]
	}
	a, seen := Unannotated, Annotations(0)
	for m := range jsonspan.Members(object) {
		for _, known := range annotationNames {
			if m.Key != known.hint {
				continue
			}
			if seen&known.bit != 0 {
				return Unannotated
			}
			seen |= known.bit
			switch string(object[m.Value.Start:m.End]) {
			case "true":
				a |= known.bit
			case "false":
				a &^= known.bit
			}
		}
	}
	if a&ReadOnly != 0 {
		a &^= Destructive // has no meaning for tools that change nothing
	}
	return a
}
