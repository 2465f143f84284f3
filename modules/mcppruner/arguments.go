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

// An object is one of which exactly the members are taken that its schema has, each
// of the type that it says. It remembers all that is wrong, so that a model can mend it
// at once.
//
// The order is read, the members one by one, end.
type object struct {
	data    []byte // known to be an object; nil if there is none, which is wrong already
	path    string // to it, with a dot at its end
	members map[string]jsonspan.Value
	faults  *faults // nil before read for those of no other object
}

// faults are what is wrong with arguments.
type faults struct {
	told []fault
	more int // that are not told
}

// missing is the fault of an argument that was not given.
const missing = "missing argument"

// A fault is what is wrong with one argument.
type fault struct{ path, what string }

// maxFaults is how many faults are told.
const maxFaults = 20

// add adds a fault, unless there is one of the same argument: the first tells most.
func (f *faults) add(path, what string) {
	if slices.ContainsFunc(f.told, func(told fault) bool { return told.path == path }) {
		return
	}
	if len(f.told) == maxFaults {
		f.more++
		return
	}
	f.told = append(f.told, fault{path, what})
}

// Error returns all faults in a line.
func (f *faults) Error() string {
	var b strings.Builder
	for i, fault := range f.told {
		if i > 0 {
			b.WriteString("; ")
		}
		if fault.what == missing {
			b.WriteString(missing + ": " + fault.path)
			continue
		}
		b.WriteString(fault.path + ": " + fault.what)
	}
	if f.more > 0 {
		fmt.Fprintf(&b, "; and %d more", f.more)
	}
	return b.String()
}

func (o *object) read() {
	if o.faults == nil {
		o.faults = new(faults)
	}
	o.members = make(map[string]jsonspan.Value)
	for m := range jsonspan.Members(o.data) {
		if _, twice := o.members[m.Key]; twice {
			o.wrong(mcp.Shortened(m.Key), "it is given twice")
		}
		o.members[m.Key] = m.Value
	}
}

func (o *object) wrong(name, what string) {
	if o.data != nil {
		o.faults.add(o.path+name, what)
	}
}

// take returns a member, and whether it is of one of these kinds.
func (o *object) take(name, what string, kinds ...jsonspan.Kind) (jsonspan.Value, bool) {
	v, ok := o.members[name]
	if !ok {
		o.wrong(name, missing)
		return v, false
	}
	delete(o.members, name)
	for _, kind := range kinds {
		if v.Kind == kind {
			return v, true
		}
	}
	o.wrong(name, "it is not "+what)
	return v, false
}

// text returns a string, and how many characters it has.
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
	f, _ := strconv.ParseFloat(string(o.data[v.Start:v.End]), 64) // it is a number, but may be infinite
	if !(0 <= f && f <= 1) {
		o.wrong(name, "it is not from 0 to 1")
	}
	return f
}

// whole returns a whole number of at least low. What is above high counts as that.
func (o *object) whole(name string, low, high int) int {
	v, ok := o.take(name, "a whole number", jsonspan.Number)
	if !ok {
		return 0
	}
	n, ok := whole(string(o.data[v.Start:v.End]))
	switch {
	case !ok:
		o.wrong(name, "it is not a whole number")
	case n < low:
		o.wrong(name, "it is less than "+strconv.Itoa(low))
	}
	return min(n, high)
}

// raw returns the literal of a member that is a container.
func (o *object) raw(name, what string, kind jsonspan.Kind) []byte {
	v, ok := o.take(name, what, kind)
	if !ok {
		return nil
	}
	return o.data[v.Start:v.End]
}

// object returns a member that is an object, to be read like this one.
func (o *object) object(name string) *object {
	inner := &object{data: o.raw(name, "an object", jsonspan.BeginObject), path: o.path + name + ".", faults: o.faults}
	inner.read()
	return inner
}

// end returns what is wrong with the object and those in it. Members that no schema has
// come last, for what else is wrong tells more.
func (o *object) end() error {
	for _, name := range slices.Sorted(maps.Keys(o.members)) {
		o.wrong(mcp.Shortened(name), "there is no such argument")
	}
	if len(o.faults.told) == 0 {
		return nil
	}
	return o.faults
}

// whole returns the whole number that a literal stands for, however it is written:
// 100.0 and 1e2 are. What no int can hold is the largest or smallest that there is.
func whole(literal string) (n int, ok bool) {
	mantissa, power, _ := strings.Cut(strings.ToLower(literal), "e")
	integer, fraction, _ := strings.Cut(mantissa, ".")
	fraction = strings.TrimRight(fraction, "0")
	digits := strings.TrimLeft(strings.TrimPrefix(integer, "-")+fraction, "0")
	if digits == "" {
		return 0, true
	}
	exponent := 0
	if power != "" {
		exponent, _ = strconv.Atoi(power) // beyond an int it is the largest or smallest
		exponent = min(max(exponent, -1<<40), 1<<40)
	}
	zeros := len(digits) - len(strings.TrimRight(digits, "0"))
	if exponent+zeros < len(fraction) {
		return 0, false
	}
	f, _ := strconv.ParseFloat(literal, 64) // which may be infinite
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64, true
	case f <= math.MinInt64:
		return math.MinInt64, true
	}
	if n, err := strconv.Atoi(literal); err == nil {
		return n, true // exactly
	}
	return int(f), true
}
