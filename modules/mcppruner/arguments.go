package mcppruner

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An object is one of which exactly the members are taken that its schema has, each
// of the type that it says. It remembers the first thing that is wrong.
//
// The order is read, the members one by one, end.
type object struct {
	data    []byte // known to be an object
	path    string // to it, with a dot at its end
	members map[string]jsonspan.Value
	err     error
}

func (o *object) read() {
	o.members = make(map[string]jsonspan.Value)
	for m := range jsonspan.Members(o.data) {
		if _, twice := o.members[m.Key]; twice {
			o.wrong(mcp.Shortened(m.Key), "it is given twice")
		}
		o.members[m.Key] = m.Value
	}
}

func (o *object) wrong(name, what string) {
	if o.err == nil {
		o.err = fmt.Errorf("%s%s: %s", o.path, name, what)
	}
}

// take returns a member, and whether it is of one of these kinds.
func (o *object) take(name, what string, kinds ...jsonspan.Kind) (jsonspan.Value, bool) {
	v, ok := o.members[name]
	if !ok {
		o.wrong(name, "it is missing")
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
	inner := &object{data: o.raw(name, "an object", jsonspan.BeginObject), path: o.path + name + "."}
	inner.err = o.err // what was wrong before is what is told
	inner.read()
	return inner
}

// end returns what is wrong with the object. Members that no schema has come last, for
// what else is wrong tells more.
func (o *object) end() error {
	unknown := ""
	for name := range o.members {
		if unknown == "" || name < unknown {
			unknown = name
		}
	}
	if len(o.members) > 0 {
		o.wrong(mcp.Shortened(unknown), "there is no such argument")
	}
	return o.err
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
