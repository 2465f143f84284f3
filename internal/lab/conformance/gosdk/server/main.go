// Command server is the reference server of the conformance run: an MCP server with the
// official Go SDK and the fixtures that the public conformance suite needs.
//
//	server               over standard input and output
//	server -http :8080   over Streamable HTTP, at any path
//
// It supports both eras, over HTTP at one endpoint.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	addr := flag.String("http", "", "serve Streamable HTTP at this `address` instead of standard input and output")
	flag.Parse()
	if *addr != "" {
		log.Fatal(http.ListenAndServe(*addr, bothEras(newServer())))
	}
	if err := newServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

// bothEras serves both eras. A handler of the SDK is either stateful or stateless, so there are
// two, with one server behind them: a change of its lists reaches the clients of both.
func bothEras(server *mcp.Server) http.Handler {
	get := func(*http.Request) *mcp.Server { return server }
	stateful := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		// Streams can be resumed, to test that through the gateway, too.
		EventStore: mcp.NewMemoryEventStore(nil),
	})
	stateless := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless:                    true,
		PropagateRequestCancellation: true,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("MCP-Protocol-Version") {
		case "", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25":
			stateful.ServeHTTP(w, r)
		default: // also unknown versions: only the stateless era has an error for them
			stateless.ServeHTTP(w, r)
		}
	})
}
