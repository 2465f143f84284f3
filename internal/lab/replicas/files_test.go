//go:build linux

package replicas

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

const shipped = "../../../packaging/replicas/"

// TestShippedFiles runs the file that is shipped for replicas, validates that of the balancer, and wants the
// manifests to give both what they need.
func TestShippedFiles(t *testing.T) {
	redis := replicastest.StartRedis(t)
	text, err := os.ReadFile(shipped + "Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	environment := []string{"REDIS_URL=redis://" + redis.Addr, "AGENTS_TOKEN=" + agentToken(0), "MCP_SESSION_KEY=" + sessionKey}
	var ends []*caddy
	for range 2 {
		// newCaddy has a site and an admin address of its own.
		options, site, _ := strings.Cut(strings.TrimPrefix(string(text[strings.Index(string(text), "\n{"):]), "\n{\n"), "\n}\n\n:8080 {\n")
		c := newCaddy(t, strings.TrimSuffix(strings.TrimSpace(site), "}"), strings.Replace(options, "\tmetrics\n", "", 1))
		c.env = environment
		c.start(t)
		ends = append(ends, c)
	}
	defer connections.CloseIdleConnections()
	client := newClient(0, true)
	client.URL = ends[0].url + "/mcp"
	got := client.Begin(t.Context(), "tools/call", toolCall("sample__read_log", `{"lines":2000}`)).Finish()
	client.URL = ends[1].url + "/mcp"
	got = client.Begin(t.Context(), "tools/call", toolCall("recover_observation", `{"id":"`+originalID.FindString(got.Raw)+`"}`)).Finish()
	if got.Result == nil || strings.Contains(got.Raw, `"isError":true`) {
		t.Errorf("the other replica: %d %.500s", got.Status, got.Body)
	}

	binary, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := caddyrun.Command(t.Context(), binary, t.TempDir(), "validate", "--adapter", "caddyfile", "--config", shipped+"balancer.Caddyfile").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}

	for _, name := range []string{"compose.yaml", "kubernetes.yaml"} {
		all, err := os.ReadFile(filepath.Join(shipped, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range environment {
			if variable, _, _ := strings.Cut(pair, "="); !strings.Contains(string(all), variable) {
				t.Errorf("%s does not set %s", name, variable)
			}
		}
		replicas := 0
		for decoder := yaml.NewDecoder(strings.NewReader(string(all))); ; {
			var object map[string]any
			err := decoder.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if strings.Contains(fmt.Sprint(object), "replicas:3") {
				replicas++
			}
		}
		if replicas != 1 || strings.Contains(string(all), "sessionAffinity") {
			t.Errorf("%s has not three replicas that any connection can go to", name)
		}
	}
}
