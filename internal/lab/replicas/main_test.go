//go:build linux

// Package replicas runs several processes of the built Caddy as replicas of one gateway, behind a
// balancer that sends each request to any of them. It shows that clients cannot distinguish them
// from one process: normally, while replicas are killed, and while the shared Redis restarts,
// stalls or fails over.
//
// The tests record the operations of clients and the responses ([agent], [operations]) once for one
// process without a store, and compare them with those of the replicas, byte for byte.
//
// REPLICAS=long has more clients and operations, and prints tables. CADDY is the path of another
// binary than bin/caddy. Tests that need redis-server or redis-sentinel, Debian packages of the
// same names, are skipped without them.
package replicas

import (
	"flag"
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// long reports whether the tests run at length.
var long = os.Getenv("REPLICAS") == "long"

// byLength returns the number for the short or the long form.
func byLength(short, inLong int) int {
	if long {
		return inLong
	}
	return short
}

// parallel lets a test run in parallel with others, in the short form: it mostly waits.
func parallel(t *testing.T) {
	t.Helper()
	if !long {
		t.Parallel()
	}
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" { // this process is a child of a gateway
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		log.Print(err)
		code = 1
	}
	os.Exit(code)
}
