package await

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A failing test notes how it failed.
type failing struct {
	testing.TB
	why string
}

func (*failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	panic(f)
}

func TestUntil(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // the condition is true
		want  string
	}{
		{"a condition that is true", 0, ""},
		{"a condition that comes true late", Patience - time.Second, ""},
		{"a condition that does not come true", 2 * Patience, "timed out waiting: the end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, f := time.Now(), &failing{TB: t}
				func() {
					defer func() { _ = recover() }()
					Until(f, "the end", func() bool { return time.Since(began) >= tt.after })
				}()
				if f.why != tt.want {
					t.Errorf("got %q, want %q", f.why, tt.want)
				}
				if took := time.Since(began); took < min(tt.after, Patience) || took > min(tt.after, Patience)+time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
