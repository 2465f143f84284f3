//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
)

// A target is an endpoint to run the suite against.
type target struct {
	name, url string
}

// caddyfile has the reference server behind the gateway in every form: at its own endpoint, as
// the only server of /mcp, and as one of several, with prefixes. Each endpoint has its own
// reference server, so that the suite can run against all of them at once. Children get an
// argument that they ignore, because gateways share children with the same command.
const caddyfile = `{
	admin off
	persist_config off
	grace_period 1s
}
http://:%[1]d {
	bind 127.0.0.1
	mcp_gateway {
		mask off
		server http http://127.0.0.1:%[3]d/mcp
		server stdio stdio %[2]q
	}
	mcp_gateway {
		mcp_path /single-http
		separator none
		server reference http://127.0.0.1:%[4]d/mcp
	}
	mcp_gateway {
		mcp_path /single-stdio
		separator none
		server reference stdio %[2]q single
	}
	mcp_gateway {
		mcp_path /joined-http
		separator __
		server reference http://127.0.0.1:%[5]d/mcp
		server sample {
			mcp_sample
		}
	}
	mcp_gateway {
		mcp_path /joined-stdio
		separator __
		server sample {
			mcp_sample
		}
		server reference stdio %[2]q joined
	}
}
`

// startTargets starts the reference server and, without opts.direct, the gateway in front of it.
// The first target is the reference server itself.
func startTargets(ctx context.Context, opts options, dir string) (targets []target, stop func(), err error) {
	var started []func()
	stopAll := func() {
		for _, stop := range slices.Backward(started) {
			stop()
		}
	}
	defer func() {
		if err != nil {
			stopAll()
		}
	}()
	start := func(cmd *exec.Cmd, name string, port int) error {
		p, err := startProcess(cmd, filepath.Join(dir, name+".log"))
		if err != nil {
			return err
		}
		started = append(started, p.stop)
		return p.await(ctx, port)
	}

	server := filepath.Join(dir, "reference-server")
	build := exec.CommandContext(ctx, "go", "build", "-C", opts.server, "-o", server, ".")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("build the reference server: %w\n%s", err, output)
	}
	httpServers := []string{"direct"}
	if !opts.direct {
		httpServers = append(httpServers, "http", "single-http", "joined-http")
	}
	ports, err := loopback.FreePorts(1 + len(httpServers))
	if err != nil {
		return nil, nil, err
	}
	gateway, ports := ports[0], ports[1:]
	for i, name := range httpServers {
		cmd := exec.Command(server, "-http", fmt.Sprintf("127.0.0.1:%d", ports[i]))
		if err := start(cmd, "server-"+name, ports[i]); err != nil {
			return nil, nil, err
		}
	}
	targets = []target{{"direct", fmt.Sprintf("http://127.0.0.1:%d/mcp", ports[0])}}
	if opts.direct {
		return targets, stopAll, nil
	}

	config := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, fmt.Appendf(nil, caddyfile, gateway, server, ports[1], ports[2], ports[3]),
		0o644); err != nil {
		return nil, nil, err
	}
	caddy := func(command string) *exec.Cmd {
		cmd := exec.Command(opts.caddy, command, "--adapter", "caddyfile", "--config", config)
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
		return cmd
	}
	// caddy run would not report errors in the configuration.
	if output, err := caddy("validate").CombinedOutput(); errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w; build it with make -f xcaddy.mk build", err)
	} else if err != nil {
		return nil, nil, fmt.Errorf("%s validate: %w\n%s", opts.caddy, err, output)
	}
	if err := start(caddy("run"), "caddy", gateway); err != nil {
		return nil, nil, err
	}
	for _, path := range []string{"mcp/http", "mcp/stdio", "single-http", "single-stdio"} {
		targets = append(targets, target{filepath.Base(path), fmt.Sprintf("http://127.0.0.1:%d/%s", gateway, path)})
	}
	for _, name := range []string{"joined-http", "joined-stdio"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, err
		}
		front := &http.Server{Handler: &shim{
			endpoint: fmt.Sprintf("http://127.0.0.1:%d/%s", gateway, name),
			server:   "reference", other: "sample", separator: "__", // as in the Caddyfile
		}}
		started = append(started, func() { _ = front.Close() })
		go func() { _ = front.Serve(listener) }()
		targets = append(targets, target{name, fmt.Sprintf("http://%s/mcp", listener.Addr())})
	}
	return targets, stopAll, nil
}
