// Command client connects to an MCP endpoint with the official Go SDK, makes the tool calls in its
// standard input and prints the results as JSON:
//
//	client http://localhost:8080/mcp
//	client -sse http://localhost:8080/sse
//
// The input is a list of calls, {"name":…,"arguments":…}. The output has the protocol version, the
// names of the tools and, for each call, its result and the progress reported before it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A call is a requested tool call, an outcome its result, and report the output.
type (
	call struct {
		Name      string         `json:"name"`
		Arguments map[string]any `json:"arguments"`
	}
	outcome struct {
		Result   *mcp.CallToolResult `json:"result"`
		Progress []float64           `json:"progress"`
	}
	report struct {
		Version string    `json:"version"`
		Tools   []string  `json:"tools"`
		Calls   []outcome `json:"calls"`
	}
)

func main() {
	sse := flag.Bool("sse", false, "use HTTP+SSE, the transport of the first revision")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: client [-sse] endpoint < calls")
	}
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: flag.Arg(0)}
	if *sse {
		transport = &mcp.SSEClientTransport{Endpoint: flag.Arg(0)}
	}
	var calls []call
	if err := json.NewDecoder(os.Stdin).Decode(&calls); err != nil {
		log.Fatal(err)
	}
	out, err := run(context.Background(), transport, calls)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, transport mcp.Transport, calls []call) (out report, err error) {
	var progress reports
	client := mcp.NewClient(&mcp.Implementation{Name: "peer", Version: "1.0.0"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			progress.add(r.Params.ProgressToken, r.Params.Progress)
		},
	})
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		return out, err
	}
	if result := session.InitializeResult(); result != nil {
		out.Version = result.ProtocolVersion
	}
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return out, err
		}
		out.Tools = append(out.Tools, tool.Name)
	}
	for i, call := range calls {
		params := &mcp.CallToolParams{Name: call.Name, Arguments: call.Arguments}
		token := fmt.Sprintf("call %d", i)
		params.SetProgressToken(token)
		result, err := session.CallTool(ctx, params)
		if err != nil {
			return out, fmt.Errorf("%s: %w", call.Name, err)
		}
		out.Calls = append(out.Calls, outcome{result, progress.get(token)})
	}
	return out, session.Close()
}

// reports has the reported progress by token.
type reports struct {
	mu     sync.Mutex
	values map[any][]float64
}

func (r *reports) add(token any, progress float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = map[any][]float64{}
	}
	r.values[token] = append(r.values[token], progress)
}

func (r *reports) get(token any) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values[token]
}
