//go:build linux

// Package chaos breaks what is around the built Caddy, and what is in front of it and
// behind it, and shows how each fault ends: with which answer, at what cost in memory,
// and that nobody else has noticed.
//
// Every fault is watched in the same way. Before, while and after it lasts, neighbours
// call other servers by all ways in, and must get their own answers and nothing else.
// When it is over, the goroutines, open files and child processes of Caddy must be as
// many as before.
//
// CHAOS=long has more calls, longer streams and larger bombs, and prints a table. CADDY
// names another binary than bin/caddy. If that is one of the race detector, set
// CHAOS_RACE, too: what memory it takes says nothing.
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

// long is the long form.
var long = os.Getenv("CHAOS") == "long"

// guard is how long a test waits for what must happen. Only a failing test ever waits
// that long.
var guard = time.Duration(more(90, 600)) * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" { // we are a child of the gateway
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	flag.Parse()
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxiproxy
	code := m.Run()
	if err := goleak.Find( // toxiproxy loses some of its own when a toxic is taken away
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).write")); err != nil && code == 0 {
		log.Print(err)
		code = 1
	}
	if long {
		printed.print()
	}
	os.Exit(code)
}

// more is for what there is more of in the long form.
func more(short, inLong int) int {
	if long {
		return inLong
	}
	return short
}

// A row tells how a fault was survived.
type row struct {
	test, name string
	answers    string // by way
	took       time.Duration
	calls      int // that met the fault
	peak       int // MiB of memory over what the idle process has
	good       int // answers that the neighbours got meanwhile
}

// rows are those of all tests.
type rows struct {
	mu  sync.Mutex
	all []row
}

var printed rows

func (r *rows) add(t *testing.T, one row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.test, _, _ = strings.Cut(t.Name(), "/")
	r.all = append(r.all, one)
	t.Logf("%s: %d calls, slowest answer after %s, memory %+d MiB, neighbours got %d answers", one.answers, one.calls, one.took.Round(time.Millisecond), one.peak, one.good)
}

// print prints the table.
func (r *rows) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.all, func(a, b row) int { return cmp.Compare(a.test, b.test) })
	test := ""
	for _, one := range r.all {
		if one.test != test {
			test = one.test
			fmt.Printf("\n`%s`:\n\n| fault | ends with | calls | slowest | memory | good calls meanwhile |\n|---|---|--:|--:|--:|--:|\n", test)
		}
		fmt.Printf("| %s | %s | %d | %.1f s | %+d MiB | %d |\n", one.name, one.answers, one.calls, one.took.Seconds(), one.peak, one.good)
	}
}
