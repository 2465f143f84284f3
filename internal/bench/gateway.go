package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

// reportGateway compares a tools/call through the gateway with one through
// reverse_proxy alone, and one to a child with one to an HTTP server. All servers are
// this program, run once for each.
func reportGateway(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	sizes := []struct {
		name string
		size int
	}{{"1KB", 1000}, {"100KB", 100_000}}
	for _, contest := range []struct {
		title, name, baseline, measured string
		connections                     []int
		caddyfile                       string
	}{
		{"calls/s of mcp_gateway, masked", "gateway/mcp", "plain", "gateway", []int{1, 16}, gatewayCaddyfile},
		{"calls/s to a server on stdio", "gateway/stdio", "http", "stdio", []int{1, 16}, stdioCaddyfile},
	} {
		headed := false
		for _, size := range sizes {
			for _, n := range contest.connections {
				name := fmt.Sprintf("%s/%s/%dclients", contest.name, size.name, n)
				if !chosen.MatchString(name) {
					continue
				}
				if !headed {
					printHeading(contest.title, contest.baseline, contest.measured)
					headed = true
				}
				if err := compareServers(ctx, name, caddy, contest.caddyfile, size.size, n, budget); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return nil
}

const (
	gatewayCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	reverse_proxy 127.0.0.1:%[3]d
}
http://:%[2]d {
	bind 127.0.0.1
	mcp_gateway {
		server bench http://127.0.0.1:%[3]d/mcp/bench
	}
}
`
	stdioCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	mcp_gateway {
		server bench http://127.0.0.1:%[3]d/mcp/bench
	}
}
http://:%[2]d {
	bind 127.0.0.1
	mcp_gateway {
		server bench stdio %[4]s serve %[5]d
	}
}
`
)

func compareServers(ctx context.Context, name, caddy, caddyfile string, size, connections int, budget time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ports, err := loopback.FreePorts(1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := exec.CommandContext(ctx, self, "serve", strconv.Itoa(size), strconv.Itoa(ports[0]))
	if err := server.Start(); err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = server.Wait()
	}()
	if err := loopback.Await(ctx, ports[0]); err != nil {
		return err
	}
	gw, err := startGateway(ctx, caddy, caddyfile, ports[0], self, size)
	if err != nil {
		return err
	}
	defer gw.stop()
	body := answer(size)
	want, err := masker(policy)(body)
	if err != nil {
		return err
	}
	c := contest{name: name, connections: connections}
	for i := range c.sites {
		c.sites[i] = site{gw.urls[i] + "/mcp/bench", []byte(toolsCall), want}
	}
	if strings.HasPrefix(name, "gateway/mcp") {
		c.sites[0].want = body
	}
	return c.run(ctx, gw, budget/(2*rounds))
}

// answer is the answer to toolsCall.
func answer(size int) []byte {
	return response(text("An observation of no consequence, with nothing to escape. ")(size), false)
}

// serve is an MCP server with one answer of a size: on HTTP if there is a port, else
// on stdio. In both ways it reads what it is asked, and answers that id.
func serve(args []string) {
	size, _ := strconv.Atoi(args[0])
	var m jsonrpc.Message
	if m.Read(answer(size)) != nil {
		panic("the answer is no message")
	}
	result := m.Literal(jsonrpc.Result)
	if len(args) > 1 {
		serveHTTP("127.0.0.1:"+args[1], result)
		return
	}
	in, out := bufio.NewReaderSize(os.Stdin, 64<<10), bufio.NewWriter(os.Stdout)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		_, _ = out.Write(reply(line, result))
		_ = out.WriteByte('\n')
		if in.Buffered() == 0 {
			_ = out.Flush()
		}
	}
}

func serveHTTP(address string, result []byte) {
	_ = http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		body = reply(body, result)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}))
}

// reply answers a message, with nothing if it wants none.
func reply(message, result []byte) []byte {
	var m jsonrpc.Message
	switch {
	case m.Read(message) != nil || !m.IsRequest():
		return nil
	case m.Is(jsonrpc.Method, "initialize"):
		result = []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}`)
	}
	return jsonrpc.Answer(m.Literal(jsonrpc.ID), result)
}
