// Package environment reads settings from variables of the environment, so that all
// of our modules read them alike.
package environment

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// Text returns what a variable says without the blanks around it, which is nothing
// if it is not set.
func Text(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// Int returns the integer that a variable says. One that says anything else counts
// as not set. One that is too large for an int is the nearest that is not.
func Int(name string) (n int, ok bool) {
	n, err := strconv.Atoi(Text(name))
	return n, err == nil || errors.Is(err, strconv.ErrRange)
}

// Clamp returns n or, if it is beyond low or high, that limit, and whether it was.
func Clamp(n, low, high int) (clamped int, beyond bool) {
	clamped = min(max(n, low), high)
	return clamped, clamped != n
}
