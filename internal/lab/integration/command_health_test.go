package integration

import (
	"strings"
	"testing"
)

// The command reports whether Caddy runs.
func TestCommandHealth(t *testing.T) {
	isolate(t)
	config := writeCaddyfile(t, site("127.0.0.1:8080", gateway(block("server sample", "mcp_sample"))))
	served := run(t, config)
	ask := func() (string, error) {
		out, err := caddy(t, "mcp-health", "--address", served.addresses[":2019"]).CombinedOutput()
		return string(out), err
	}
	if out, err := ask(); err != nil || out != "sample unknown\n" {
		t.Errorf("running: %v: %s", err, out)
	}
	served.stop(t)
	if out, err := ask(); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("stopped: %v: %s", err, out)
	}
}
