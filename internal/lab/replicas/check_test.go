//go:build linux

package replicas

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// TestStoreIsChecked has operators told how the store is: by caddy mcp check, of a running Caddy and of a
// file, and by the overview of the admin API.
func TestStoreIsChecked(t *testing.T) {
	const password = "not-to-be-seen"
	redis := replicastest.StartRedis(t, "--requirepass", password)
	c := newCaddy(t, block("mcp_gateway", "separator __", block("server sample", "mcp_sample")),
		block("mcp_store redis redis://:"+password+"@"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	at := `redis at redis://` + regexp.QuoteMeta(redis.Addr)
	ways := map[string][]string{
		"the running Caddy": {"--address", strings.TrimPrefix(c.admin, "http://")},
		"a file":            {"--config", c.file},
	}
	for name, way := range ways {
		c.checks(t, name, 0, `^mcp_store  up in \d+\.\d ms  `+at+`\nsample     up in .*tokens\n$`, way...)
		c.checks(t, name+", one server", 0, `^sample  up in .*tokens\n$`, append(way, "sample")...)
		out := c.checks(t, name+", as JSON", 0, ``, append(way, "--json")...)
		var checked []struct {
			Name, Engine, Address string
			Up                    bool
			Seconds               float64
		}
		if err := json.Unmarshal([]byte(out), &checked); err != nil || len(checked) != 2 || checked[1].Name != "sample" {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		if s := checked[0]; s.Name != "mcp_store" || s.Engine != "redis" || s.Address != "redis://"+redis.Addr || !s.Up || s.Seconds <= 0 {
			t.Errorf("%s: %s", name, out)
		}
	}
	if s := c.store(t); s.Engine != "redis" || s.Address != "redis://"+redis.Addr || !s.Up || s.Error != "" || s.Waiting != 0 {
		t.Errorf("the overview has %+v", s)
	}

	redis.Pause()
	for name, way := range ways {
		c.checks(t, name+", stalled", 1, `^mcp_store  down: .+ \(`+at+`\)\nsample     up in `, way...)
	}
	redis.Continue()
	redis.Stop()
	for name, way := range ways {
		c.checks(t, name+", stopped", 1, `^mcp_store  down: .*connection refused.* \(`+at+`\)\nsample     up in `, way...)
	}
	if s := c.store(t); s.Up || s.Error == "" || s.Outages == 0 {
		t.Errorf("the overview has %+v", s)
	}
	redis.Restart()
	await.Until(t, "the store", func() bool { return c.store(t).Up })
	for name, way := range ways {
		c.checks(t, name+", again", 0, `^mcp_store  up in `, way...)
	}
}

// TestFullStoreIsChecked has them told that the store is full, too.
func TestFullStoreIsChecked(t *testing.T) {
	redis := replicastest.StartRedis(t, "--maxmemory", "1")
	c := newCaddy(t, block("mcp_gateway", "separator __", block("server sample", "mcp_sample")),
		block("mcp_store redis redis://"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	ways := map[string][]string{
		"the running Caddy": {"--address", strings.TrimPrefix(c.admin, "http://")},
		"a file":            {"--config", c.file},
	}
	for name, way := range ways {
		c.checks(t, name, 0, `^mcp_store  up in \d+\.\d ms, but full  redis at redis://`, way...)
	}
	if s := c.store(t); !s.Up || !s.Full {
		t.Errorf("the overview has %+v", s)
	}
	expect(t, redis, "+OK", "CONFIG", "SET", "maxmemory", "0")
	for name, way := range ways {
		c.checks(t, name+", with room", 0, `^mcp_store  up in \d+\.\d ms  redis at redis://`, way...)
	}
	await.Until(t, "the store to have room", func() bool { return !c.store(t).Full })
	c.logged(t, "shared store is full", "shared store has room again")
}

// logged wants each of these messages to be in the log once.
func (c *caddy) logged(t *testing.T, messages ...string) {
	t.Helper()
	log, err := os.ReadFile(c.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range messages {
		if n := strings.Count(string(log), message); n != 1 {
			t.Errorf("logged %d times: %s", n, message)
		}
	}
}

// TestStoreWithoutGateway has the admin API tell of a store that only a mask uses.
func TestStoreWithoutGateway(t *testing.T) {
	redis := replicastest.StartRedis(t)
	c := newCaddy(t, "tool_result_mask\nrespond ok", "order tool_result_mask first",
		block("mcp_store redis redis://"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	if s := c.store(t); !s.Up || s.Address != "redis://"+redis.Addr {
		t.Errorf("the overview has %+v", s)
	}
	if got := post(c.admin+"/mcp_gateway/store/check", ""); got.Status != http.StatusOK || !strings.Contains(got.Body, `"up":true`) {
		t.Errorf("%d %s %v", got.Status, got.Body, got.Err)
	}
}

// checks runs caddy mcp check, and returns what it prints.
func (c *caddy) checks(t *testing.T, name string, status int, want string, args ...string) string {
	t.Helper()
	binary, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := caddyrun.Command(t.Context(), binary, filepath.Dir(c.file), append([]string{"mcp", "check"}, args...)...)
	cmd.Env = append(cmd.Env, c.env...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != status || !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%s: status %d\n%s%s", name, got, &out, &complaints)
	}
	if all := out.String() + complaints.String(); strings.Contains(all, "not-to-be-seen") || strings.Contains(all, sessionKey) {
		t.Errorf("%s: a secret is printed:\n%s", name, all)
	}
	return out.String()
}

// A storeStatus is how the overview of the admin API has the store.
type storeStatus struct {
	Engine, Address, Error string
	Up, Full               bool
	Outages                int
	Waiting                int `json:"writes_waiting"`
}

func (c *caddy) store(t *testing.T) storeStatus {
	t.Helper()
	text := []byte(c.askAdmin(t, "/mcp_gateway/overview"))
	var overview struct{ Store storeStatus }
	if err := json.Unmarshal(text, &overview); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "not-to-be-seen") || strings.Contains(string(text), sessionKey) {
		t.Errorf("a secret is shown: %s", text)
	}
	return overview.Store
}
