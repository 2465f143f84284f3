package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

const consoleCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	mcp_console
	mcp_gateway {
		separator __
		server bench http://127.0.0.1:%[3]d%[4]s
	}
}
http://:%[2]d {
	bind 127.0.0.1
}
`

// turn is how long calls are made with the console closed or open: long enough for its pages to
// update.
const turn = 2 * time.Second

// reportConsole compares calls while two browser tabs show live pages of the console with calls
// while it is closed.
func reportConsole(ctx context.Context, chosen *regexp.Regexp, caddy string) error {
	headed := false
	for _, clients := range []int{1, 16} {
		name := fmt.Sprintf("console/call/1KB/%dclients", clients)
		if !chosen.MatchString(name) {
			continue
		}
		if !headed {
			printHeading("calls/s, console closed and open", "closed", "open")
			headed = true
		}
		if err := compareConsole(ctx, name, caddy, clients); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func compareConsole(ctx context.Context, name, caddy string, clients int) error {
	const size = 1000
	server, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	gw, err := startGateway(ctx, caddy, consoleCaddyfile, server.Port, upstream.CallPath+"1000")
	if err != nil {
		return err
	}
	defer gw.stop()
	sessions, err := openSessions(ctx, gw.urls[0]+"/mcp", clients)
	if err != nil {
		return err
	}
	request := jsonrpc.Request(1, "tools/call", []byte(`{"name":"bench__read_log","arguments":{"lines":2000}}`))
	closed := site{gw.urls[0] + "/mcp", request, toolsCallResponse(size), sessions}
	open := watchedSite{closed, []string{gw.urls[0] + "/console/live/overview", gw.urls[0] + "/console/live/calls"}}
	return contest{name: name, connections: clients, sites: [2]callTarget{closed, open}}.run(ctx, gw, turn)
}

// A watchedSite is a site whose console is open while calls are made.
type watchedSite struct {
	site
	streams []string // URLs of event streams, one for each tab
}

// load makes calls while all streams are read.
func (s watchedSite) load(ctx context.Context, connections int, d time.Duration) load.Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, url := range s.streams {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return load.Result{Err: err}
		}
		res, err := load.HTTP.Do(req)
		if err != nil {
			return load.Result{Err: err}
		}
		if res.StatusCode != http.StatusOK {
			res.Body.Close()
			return load.Result{Err: fmt.Errorf("%s: status %d", url, res.StatusCode)}
		}
		go func() {
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, res.Body) // until ctx is canceled
		}()
	}
	return s.site.load(ctx, connections, d)
}
