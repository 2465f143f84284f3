// Package await lets tests wait for conditions instead of sleeping.
package await

import (
	"testing"
	"time"
)

// Patience limits how long a test waits for a condition. Only failing tests wait that long, so it
// can be longer than a busy machine needs.
const Patience = time.Minute

// Until polls a condition until it is true. After Patience it ends the test with a message that
// names the condition: what.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !Within(Patience, condition) {
		t.Fatalf("timed out waiting: %s", what)
	}
}

// Within polls a condition, and reports whether it became true in time.
func Within(patience time.Duration, condition func() bool) bool {
	const longest = 20 * time.Millisecond
	pause := time.Millisecond // grows, because checking the condition takes time, too
	for began := time.Now(); !condition(); pause = min(pause*3/2, longest) {
		if time.Since(began) > patience {
			return false
		}
		time.Sleep(pause)
	}
	return true
}
