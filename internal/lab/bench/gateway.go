package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

// reportGateway compares a tools/call through the gateway with one through reverse_proxy,
// and a call to a stdio server with one to an HTTP server.
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
		{"calls/s to a stdio server", "gateway/stdio", "http", "stdio", []int{1, 16}, stdioCaddyfile},
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
		mask
		server bench http://127.0.0.1:%[3]d%[4]s
	}
}
`
	stdioCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	mcp_gateway {
		mask
		server bench http://127.0.0.1:%[3]d%[4]s
	}
}
http://:%[2]d {
	bind 127.0.0.1
	mcp_gateway {
		mask
		server bench stdio %[5]s
	}
}
`
)

func compareServers(ctx context.Context, name, caddy, caddyfile string, size, connections int,
	budget time.Duration) error {
	path := fmt.Sprint(upstream.CallPath, size)
	server, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	child, err := upstream.Stdio(path)
	if err != nil {
		return err
	}
	gw, err := startGateway(ctx, caddy, caddyfile, server.Port, path, strings.Join(child, " "))
	if err != nil {
		return err
	}
	defer gw.stop()
	body := toolsCallResponse(size)
	want, err := masker(policy)(body)
	if err != nil {
		return err
	}
	c := contest{name: name, connections: connections}
	for i := range c.sites {
		c.sites[i] = site{gw.urls[i] + "/mcp/bench", []byte(toolsCall), want, nil}
	}
	if strings.HasPrefix(name, "gateway/mcp") {
		c.sites[plain] = site{gw.urls[plain] + path, []byte(toolsCall), body, nil}
	}
	return c.run(ctx, gw, budget/(2*rounds))
}

// toolsCallResponse returns the response to toolsCall.
func toolsCallResponse(size int) []byte {
	return jsonrpc.ResultResponse([]byte("1"), upstream.Result(size))
}
