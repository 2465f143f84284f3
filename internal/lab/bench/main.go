// Command bench reports what masking costs, in one run and on one machine:
//
//	go -C internal/lab run ./bench [-run regexp] [-seconds n] [-caddy ../../bin/caddy]
//
// mask/… compares package mask with decoding, cutting and encoding the message,
// conversation/… package chat with decoding, editing and encoding the request.
// proxy/… compares observation_mask + reverse_proxy, and in proxy/conversation/…
// tool_result_mask + reverse_proxy, with reverse_proxy alone, in the built binary. gateway/… compares mcp_gateway with reverse_proxy alone, and its
// servers on stdio with those on HTTP. aggregate/… does so where all servers are one,
// compares lists from memory with those that are asked for, and tells what an idle
// session takes. console/… compares calls while the console is open with those while it is
// closed. replicas/… compares calls with a limit that is in Redis with those of which it is
// in memory, and tells what replicas behind a balancer take of Redis; it needs redis-server. Speeds depend on the machine and on what else it is doing, so the
// figures to look at are the ratios: the contestants of a case take turns many times
// over, and noise hits them alike.
//
// It is a report, not a test: it fails only if something could not be measured
// or came out wrong, never because something is slow.
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
	seconds := flag.Float64("seconds", 3, "how long to measure a case of mask; a case of proxy takes four times as long")
	caddy := flag.String("caddy", "../../bin/caddy", "the `binary` to measure proxy with")
	flag.Parse()

	// The context stops the child process, which a signal must not leave behind.
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
