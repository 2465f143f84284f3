//go:build linux

// Package chaos makes clients, servers and the environment of the built Caddy fail. It checks how
// calls end, how much memory each fault takes, and that other clients are not affected.
//
// Every fault is observed in the same way. Before, during and after it, other clients call
// other servers at all endpoints, and must get their own responses and nothing else. When the
// fault is over, Caddy must have as many goroutines, open files and child processes as before.
//
// CHAOS=long makes more calls, uses longer streams and larger bombs, and prints a table. CADDY
// is the path of another binary than bin/caddy. If it is built with the race detector, also
// set CHAOS_RACE, so that memory is not checked.
package chaos

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// long reports whether the tests run at length.
var long = os.Getenv("CHAOS") == "long"

// testTimeout is the timeout for everything that must happen. Only a failing test waits that long.
var testTimeout = time.Duration(byLength(90, 600)) * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" { // this process is a child of the gateway
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	flag.Parse()
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxiproxy
	code := m.Run()
	if err := goleak.Find( // toxiproxy leaks goroutines when a toxic is removed
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).write")); err != nil && code == 0 {
		log.Print(err)
		code = 1
	}
	if long {
		report.print()
	}
	os.Exit(code)
}

// byLength returns the number for the short or the long form.
func byLength(short, inLong int) int {
	if long {
		return inLong
	}
	return short
}

// A row is the outcome of a fault.
type row struct {
	test, name string
	classes    string // how calls ended, by endpoint
	took       time.Duration
	calls      int // calls that were affected
	peak       int // MiB of memory above the idle process
	good       int // successful calls of other clients during the fault
}

// rows are the outcomes of all tests.
type rows struct {
	mu  sync.Mutex
	all []row
}

var report rows

func (r *rows) add(t *testing.T, one row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.test, _, _ = strings.Cut(t.Name(), "/")
	r.all = append(r.all, one)
	t.Logf("%s: %d calls, the slowest took %s, memory %+d MiB, %d good calls of other clients", one.classes, one.calls,
		one.took.Round(time.Millisecond), one.peak, one.good)
}

// print prints tables in Markdown.
func (r *rows) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.all, func(a, b row) int { return cmp.Compare(a.test, b.test) })
	test := ""
	for _, one := range r.all {
		if one.test != test {
			test = one.test
			fmt.Printf("\n`%s`:\n\n| fault | ends with | calls | slowest | memory | good calls |\n|---|---|--:|--:|--:|--:|\n",
				test)
		}
		fmt.Printf("| %s | %s | %d | %.1f s | %+d MiB | %d |\n", one.name, one.classes, one.calls, one.took.Seconds(),
			one.peak, one.good)
	}
}
