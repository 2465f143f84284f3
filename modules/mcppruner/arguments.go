package mcppruner

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An object reads the members of a JSON object strictly: it must have the schema's members, with
// the schema's types, and no others. It collects all faults, so that a model can fix them at once.
//
// Call read first, then one method for each member, then end.
type object struct {
	data    []byte // a JSON object, or nil if the member that should hold it is missing or invalid
	path    string // path to the object, with a trailing dot
	members map[string]jsonspan.Value
	faults  *faults // shared with the enclosing object; read creates it if nil
}

// faults collects the errors of a call's arguments.
type faults struct {
	list    []fault
	omitted int // number of faults not listed
}

// missing is the fault of an argument that was not given.
const missing = "missing argument"

// A fault is the error of one argument.
type fault struct{ path, problem string }

// maxFaults bounds the list of faults.
const maxFaults = 20

// add adds a fault. Only the first fault of an argument is kept.
func (f *faults) add(path, what string) {
	if slices.ContainsFunc(f.list, func(other fault) bool { return other.path == path }) {
		return
	}
	if len(f.list) == maxFaults {
		f.omitted++
		return
	}
	f.list = append(f.list, fault{path, what})
}

// Error returns all faults in one line.
func (f *faults) Error() string {
	var b strings.Builder
	for i, fault := range f.list {
		if i > 0 {
			b.WriteString("; ")
		}
		if fault.problem == missing {
			b.WriteString(missing + ": " + fault.path)
			continue
		}
		b.WriteString(fault.path + ": " + fault.problem)
	}
	if f.omitted > 0 {
		fmt.Fprintf(&b, "; and %d more", f.omitted)
	}
	return b.String()
}

// read finds the members of the object.
func (o *object) read() {
	if o.faults == nil {
		o.faults = new(faults)
	}
	o.members = make(map[string]jsonspan.Value)
	for m := range jsonspan.Members(o.data) {
		if _, twice := o.members[m.Key]; twice {
			o.invalid(mcp.Shortened(m.Key), "given twice")
		}
		o.members[m.Key] = m.Value
	}
}

// invalid adds a fault of a member.
func (o *object) invalid(name, what string) {
	if o.data != nil {
		o.faults.add(o.path+name, what)
	}
}

// take removes and returns a member, and reports whether it is of one of these kinds. what
// describes the kinds in the fault.
func (o *object) take(name, what string, kinds ...jsonspan.Kind) (jsonspan.Value, bool) {
	v, ok := o.members[name]
	if !ok {
		o.invalid(name, missing)
		return v, false
	}
	delete(o.members, name)
	for _, kind := range kinds {
		if v.Kind == kind {
			return v, true
		}
	}
	o.invalid(name, "must be "+what)
	return v, false
}

// text returns a string and its length in characters.
func (o *object) text(name string) (text string, chars int) {
	v, ok := o.take(name, "a string", jsonspan.String)
	if !ok {
		return "", 0
	}
	return string(jsonspan.AppendText(nil, v.Body(o.data))), v.Chars
}

func (o *object) boolean(name string) bool {
	v, _ := o.take(name, "true or false", jsonspan.True, jsonspan.False)
	return v.Kind == jsonspan.True
}

// fraction returns a number from 0 to 1.
func (o *object) fraction(name string) float64 {
	v, ok := o.take(name, "a number", jsonspan.Number)
	if !ok {
		return 0
	}
	f, _ := strconv.ParseFloat(string(o.data[v.Start:v.End]), 64) // valid syntax, but may be infinite
	if !(0 <= f && f <= 1) {
		o.invalid(name, "must be from 0 to 1")
	}
	return f
}

// integer returns a whole number of at least low. Numbers above high count as high.
func (o *object) integer(name string, low, high int) int {
	v, ok := o.take(name, "a whole number", jsonspan.Number)
	if !ok {
		return 0
	}
	n, ok := parseWhole(string(o.data[v.Start:v.End]))
	switch {
	case !ok:
		o.invalid(name, "must be a whole number")
	case n < low:
		o.invalid(name, "must be at least "+strconv.Itoa(low))
	}
	return min(n, high)
}

// raw returns the JSON of a member that is an array or object.
func (o *object) raw(name, what string, kind jsonspan.Kind) []byte {
	v, ok := o.take(name, what, kind)
	if !ok {
		return nil
	}
	return o.data[v.Start:v.End]
}

// object returns a member that is an object, ready to be read.
func (o *object) object(name string) *object {
	inner := &object{
		data: o.raw(name, "an object", jsonspan.BeginObject), path: o.path + name + ".", faults: o.faults,
	}
	inner.read()
	return inner
}

// end returns the faults of the object and of the objects in it. Unknown members come last, because
// the other faults are more helpful.
func (o *object) end() error {
	for _, name := range slices.Sorted(maps.Keys(o.members)) {
		o.invalid(mcp.Shortened(name), "unknown argument")
	}
	if len(o.faults.list) == 0 {
		return nil
	}
	return o.faults
}

// parseWhole parses a whole number in any JSON notation, such as 100.0 and 1e2. Numbers that do not
// fit into an int become the largest or smallest int.
func parseWhole(literal string) (n int, ok bool) {
	mantissa, power, _ := strings.Cut(strings.ToLower(literal), "e")
	integer, fraction, _ := strings.Cut(mantissa, ".")
	fraction = strings.TrimRight(fraction, "0")
	digits := strings.TrimLeft(strings.TrimPrefix(integer, "-")+fraction, "0")
	if digits == "" {
		return 0, true
	}
	exponent := 0
	if power != "" {
		exponent, _ = strconv.Atoi(power) // out of range: the largest or smallest int
		exponent = min(max(exponent, -1<<40), 1<<40)
	}
	zeros := len(digits) - len(strings.TrimRight(digits, "0"))
	if exponent+zeros < len(fraction) {
		return 0, false
	}
	f, _ := strconv.ParseFloat(literal, 64) // may be infinite
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64, true
	case f <= math.MinInt64:
		return math.MinInt64, true
	}
	if n, err := strconv.Atoi(literal); err == nil {
		return n, true // exact
	}
	return int(f), true
}
