// Command relay is a minimal gateway with the official Go SDK: a client for each upstream,
// and one server with all their tools.
//
//	relay 127.0.0.1:8080 http://127.0.0.1:9000/mcp
//	relay 127.0.0.1:8080 one=http://127.0.0.1:9000/mcp two=http://127.0.0.1:9001/mcp
//
// Tools of an upstream with a name are called one__tool. /mcp serves the revisions with
// sessions, /stateless serves 2026-07-28: a handler of the SDK supports only one of the two.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: relay address [name=]upstream...")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string, upstreams []string) error {
	server := mcp.NewServer(&mcp.Implementation{Name: "relay", Version: "1.0.0"}, nil)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64 // with the default of 2, most calls would dial
	for _, upstream := range upstreams {
		prefix, endpoint := "", upstream
		if name, after, named := strings.Cut(upstream, "="); named {
			prefix, endpoint = name+"__", after
		}
		if err := export(ctx, server, prefix, &mcp.StreamableClientTransport{
			Endpoint: endpoint, HTTPClient: &http.Client{Transport: transport}, DisableStandaloneSSE: true,
		}); err != nil {
			return fmt.Errorf("%s: %w", upstream, err)
		}
	}
	get := func(*http.Request) *mcp.Server { return server }
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{JSONResponse: true}))
	mux.Handle("/stateless", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{JSONResponse: true,
		Stateless: true}))
	return http.ListenAndServe(address, mux)
}

// export adds the tools of an upstream to the server.
func export(ctx context.Context, server *mcp.Server, prefix string, transport mcp.Transport) error {
	session, err := mcp.NewClient(&mcp.Implementation{Name: "relay", Version: "1.0.0"}, nil).Connect(ctx, transport, nil)
	if err != nil {
		return err
	}
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		name := tool.Name
		tool.Name = prefix + name
		server.AddTool(tool, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: r.Params.Arguments})
		})
	}
	return nil
}
