// Command bench reports the cost of masking and of the gateway, in one run on one machine:
//
//	go -C internal/lab run ./bench [-run regexp] [-seconds n] [-caddy ../../bin/caddy]
//
// Cases, by prefix:
//
//   - mask/…: package mask, compared with decoding, cutting and encoding the message.
//   - conversation/…: package chat, compared with decoding, editing and encoding the request.
//   - proxy/…: observation_mask with reverse_proxy, compared with reverse_proxy alone, in the
//     built binary. In proxy/conversation/… the mask is tool_result_mask.
//   - gateway/…: mcp_gateway, compared with reverse_proxy; stdio servers, compared with HTTP servers.
//   - aggregate/…: the endpoint of all servers, compared with reverse_proxy; cached lists,
//     compared with requested ones; the memory of an idle session.
//   - console/…: calls while the console is open, compared with calls while it is closed.
//   - replicas/…: a rate limit in Redis, compared with one in memory; the load of replicas
//     behind a balancer on Redis. Needs redis-server.
//
// Speeds depend on the machine and its load, so look at the ratios: the contestants of a
// case take many short turns, and noise affects them alike.
//
// This is a report, not a test. It fails if something cannot be measured or gives a wrong
// result, never because something is slow.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

func main() {
	upstream.Main()
	run := flag.String("run", "", "measure only cases whose `name` matches this regular expression, such as mask/source")
	seconds := flag.Float64("seconds", 3, "`seconds` to measure a case of mask/…; a case of proxy/… takes four times "+
		"as long")
	caddy := flag.String("caddy", "../../bin/caddy", "Caddy `binary` to measure")
	flag.Parse()

	// Canceling the context stops the child processes, which must not outlive a signal.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := report(ctx, *run, *caddy, time.Duration(*seconds*float64(time.Second))); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func report(ctx context.Context, run, caddy string, budget time.Duration) error {
	chosen, err := regexp.Compile(run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	fmt.Printf("%s, %s %s/%s, %s, %d cores\n", time.Now().Format(time.RFC3339),
		runtime.Version(), runtime.GOOS, runtime.GOARCH, procfs.ThisMachine().CPU, runtime.GOMAXPROCS(0))
	if err := reportMask(ctx, chosen, budget); err != nil {
		return fmt.Errorf("mask: %w", err)
	}
	if err := reportConversation(ctx, chosen, budget); err != nil {
		return fmt.Errorf("conversation: %w", err)
	}
	if err := reportProxy(ctx, chosen, caddy, 4*budget); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	if err := reportGateway(ctx, chosen, caddy, 4*budget); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if err := reportAggregate(ctx, chosen, caddy, 2*budget); err != nil {
		return fmt.Errorf("aggregate: %w", err)
	}
	if err := reportConsole(ctx, chosen, caddy); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	if err := reportReplicas(ctx, chosen, caddy, 2*budget); err != nil {
		return fmt.Errorf("replicas: %w", err)
	}
	return nil
}
