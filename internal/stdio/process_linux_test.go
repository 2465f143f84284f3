package stdio

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The pipe of a child is enlarged after the child has written a long message, and counts as such
// until it is closed.
func TestPipesOfLongMessagesAreWide(t *testing.T) {
	limit, err := os.ReadFile("/proc/sys/fs/pipe-max-size")
	if err != nil || strings.TrimSpace(string(limit)) != "1048576" {
		t.Skip("the limit of pipes on this system differs")
	}
	before := wide.Load()
	p := newPuppets(t)
	c := p.client()
	size := func() (n int) {
		t.Helper()
		s, err := p.sharedServer("alpha:1", nil, "")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.current().stdout.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) { n, err = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0) })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	c.post(request(`1`, "fill", `{"code":1000}`)).whole()
	equal(t, "initial size", size(), 64<<10)
	for range 2 {
		c.post(request(`1`, "fill", `{"code":100000}`)).whole()
		equal(t, "size after a long message", size(), widePipe)
		equal(t, "wide pipes", wide.Load(), before+1)
	}
	p.Close()
	equal(t, "wide pipes after close", wide.Load(), before)
}
