package integration

import (
	"strings"
	"testing"
)

// TestCommandHealth asks a built binary that runs, and asks again after it has stopped.
func TestCommandHealth(t *testing.T) {
	isolate(t)
	config := inFile(t, site("127.0.0.1:8080", gateway(block("server sample", "mcp_sample"))))
	served := run(t, config)
	ask := func() (string, error) {
		out, err := caddy(t, "mcp-health", "--address", served.moved[":2019"]).CombinedOutput()
		return string(out), err
	}
	if out, err := ask(); err != nil || out != "sample unknown\n" {
		t.Errorf("while it runs: %v: %s", err, out)
	}
	served.stop(t)
	if out, err := ask(); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("after it has stopped: %v: %s", err, out)
	}
}
