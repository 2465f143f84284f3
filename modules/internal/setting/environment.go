package setting

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// EnvText returns an environment variable without surrounding whitespace.
func EnvText(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// EnvInt returns an environment variable that is a whole number. ok is false for any other value. A
// number too large for an int is clamped.
func EnvInt(name string) (n int, ok bool) {
	n, err := strconv.Atoi(EnvText(name))
	return n, err == nil || errors.Is(err, strconv.ErrRange)
}

// Clamp returns n clamped to low..high, and whether it was outside.
func Clamp(n, low, high int) (clamped int, outside bool) {
	clamped = min(max(n, low), high)
	return clamped, clamped != n
}
