// Package await lets tests wait for conditions instead of for some time.
package await

import (
	"testing"
	"time"
)

// Patience is how long a test waits for something that must happen. Only a failing
// test waits that long, so it is more than a machine with busy cores needs.
const Patience = time.Minute

// Until waits for a condition that nothing reports. The test fails if it does not
// come true; what names it.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !Within(Patience, condition) {
		t.Fatalf("waited in vain: %s", what)
	}
}

// Within waits for a condition, and reports whether it came true in time.
func Within(patience time.Duration, condition func() bool) bool {
	const longest = 20 * time.Millisecond
	pause := time.Millisecond // first, and then longer: to ask costs time, too
	for began := time.Now(); !condition(); pause = min(pause*3/2, longest) {
		if time.Since(began) > patience {
			return false
		}
		time.Sleep(pause)
	}
	return true
}
