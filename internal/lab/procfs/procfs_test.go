package procfs

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	const after = " S 7 1 1 0 -1 4194560 1 1 1 1 150 50 30 20 20 0 1 0 4711 1 1"
	for _, c := range []struct {
		name, stat string
		ok         bool
	}{
		{"a simple name", "42 (caddy)" + after, true},
		{"a name with spaces and parentheses", "42 (a) b (c)" + after, true},
		{"no such process", "", false},
		{"a truncated line", "42 (caddy) S 7", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, ok := parse(c.stat)
			if ok != c.ok || ok && p != (Process{42, 7, 'S', "4711", 2500 * time.Millisecond}) {
				t.Errorf("got %+v, %v, want ok %v", p, ok, c.ok)
			}
		})
	}
}

// A process that listens at two addresses and has open connections has two listeners.
func TestListeners(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux's /proc")
	}
	var want []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		want = append(want, fmt.Sprintf("0100007F:%04X", l.Addr().(*net.TCPAddr).Port))
	}
	got := Listeners(os.Getpid())
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
