//go:build linux

// Package replicas runs several of the built Caddy as replicas of one gateway, behind a balancer that
// sends each request to any of them, and shows that clients cannot tell them from one process: in good
// times, while replicas are killed, and while the Redis that they share is restarted, stalls or fails
// over.
//
// What clients do and are answered is written down ([agent], [operations]) once for one process without a
// store, and is compared with that of the replicas, to the letter.
//
// REPLICAS=long has more clients and operations, and prints tables. CADDY names another binary than
// bin/caddy. Without redis-server, which Debian has in redis-server and redis-sentinel, tests are skipped.
package replicas

import (
	"flag"
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// long is the long form.
var long = os.Getenv("REPLICAS") == "long"

// more is for what there is more of in the long form.
func more(short, inLong int) int {
	if long {
		return inLong
	}
	return short
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" { // we are a child of a gateway
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	flag.Parse()
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		log.Print(err)
		code = 1
	}
	os.Exit(code)
}
