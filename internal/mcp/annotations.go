package mcp

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Annotations are what a tool says of its effects. They are hints: a server may be wrong, or lie.
type Annotations uint8

const (
	ReadOnly    Annotations = 1 << iota // it changes nothing
	Destructive                         // it may change or remove what is there, and not just add to it
	Idempotent                          // to call it again changes nothing more
	OpenWorld                           // it has to do with the world outside, as a web search has
)

// Unannotated are those of a tool that says nothing, as the specification has it.
const Unannotated = Destructive | OpenWorld

// annotationNames are the annotations as rules name them, and as definitions of tools do.
var annotationNames = []struct {
	is         Annotations
	name, hint string
}{
	{ReadOnly, "read_only", "readOnlyHint"},
	{Destructive, "destructive", "destructiveHint"},
	{Idempotent, "idempotent", "idempotentHint"},
	{OpenWorld, "open_world", "openWorldHint"},
}

// ParseAnnotation returns the annotation that a rule names.
func ParseAnnotation(name string) (is Annotations, ok bool) {
	for _, a := range annotationNames {
		if a.name == name {
			return a.is, true
		}
	}
	return 0, false
}

// AnnotationNames returns the names by which rules know annotations.
func AnnotationNames() (names []string) {
	for _, a := range annotationNames {
		names = append(names, a.name)
	}
	return names
}

// Hint returns the name of one annotation in the definition of a tool.
func (a Annotations) Hint() string {
	for _, known := range annotationNames {
		if known.is == a {
			return known.hint
		}
	}
	return ""
}

// Hints calls f for each annotation as the definition of a tool has it.
func (a Annotations) Hints(f func(hint string, on bool)) {
	for _, known := range annotationNames {
		f(known.hint, a&known.is != 0)
	}
}

// String returns the names of those that are set.
func (a Annotations) String() string {
	var set []string
	for _, known := range annotationNames {
		if a&known.is != 0 {
			set = append(set, known.name)
		}
	}
	return strings.Join(set, " ")
}

// ReadAnnotations reads those of the definition of a tool. What is absent, or no boolean, is as the
// specification says. So is all of it if it can be read in more than one way.
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
			if seen&known.is != 0 {
				return Unannotated
			}
			seen |= known.is
			switch string(object[m.Value.Start:m.End]) {
			case "true":
				a |= known.is
			case "false":
				a &^= known.is
			}
		}
	}
	if a&ReadOnly != 0 {
		a &^= Destructive // which says nothing then
	}
	return a
}
