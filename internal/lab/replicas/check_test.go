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

// TestStoreIsChecked checks how operators see the state of the store: with caddy mcp check, for a
// running Caddy and for a file, and in the overview of the admin API.
func TestStoreIsChecked(t *testing.T) {
	const password = "not-to-be-seen"
	redis := replicastest.StartRedis(t, "--requirepass", password)
	c := newCaddy(t, block("mcp_gateway", "separator __", block("server sample", "mcp_sample")),
		block("mcp_store redis redis://:"+password+"@"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	location := `redis at redis://` + regexp.QuoteMeta(redis.Addr)
	arguments := map[string][]string{
		"the running Caddy": {"--address", strings.TrimPrefix(c.admin, "http://")},
		"a file":            {"--config", c.file},
	}
	for name, args := range arguments {
		c.runCheck(t, name, 0, `^mcp_store  up in \d+\.\d ms  `+location+`\nsample     up in .*tokens\n$`, args...)
		c.runCheck(t, name+", one server", 0, `^sample  up in .*tokens\n$`, append(args, "sample")...)
		out := c.runCheck(t, name+", as JSON", 0, ``, append(args, "--json")...)
		var checked []struct {
			Name, Engine, Address string
			Up                    bool
			Seconds               float64
		}
		if err := json.Unmarshal([]byte(out), &checked); err != nil || len(checked) != 2 || checked[1].Name != "sample" {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		if s := checked[0]; s.Name != "mcp_store" || s.Engine != "redis" || s.Address != "redis://"+redis.Addr || !s.Up ||
			s.Seconds <= 0 {
			t.Errorf("%s: %s", name, out)
		}
	}
	if s := c.store(t); s.Engine != "redis" || s.Address != "redis://"+redis.Addr || !s.Up || s.Error != "" ||
		s.Waiting != 0 {
		t.Errorf("got %+v in the overview", s)
	}

	redis.Pause()
	for name, args := range arguments {
		c.runCheck(t, name+", stalled", 1, `^mcp_store  down: .+ \(`+location+`\)\nsample     up in `, args...)
	}
	redis.Continue()
	redis.Stop()
	for name, args := range arguments {
		c.runCheck(t, name+", stopped", 1, `^mcp_store  down: .*connection refused.* \(`+location+`\)\nsample     up in `,
			args...)
	}
	if s := c.store(t); s.Up || s.Error == "" || s.Outages == 0 {
		t.Errorf("got %+v in the overview", s)
	}
	redis.Restart()
	await.Until(t, "the store to be up", func() bool { return c.store(t).Up })
	for name, args := range arguments {
		c.runCheck(t, name+", again", 0, `^mcp_store  up in `, args...)
	}
}

// TestFullStoreIsChecked checks that they also see that the store is full.
func TestFullStoreIsChecked(t *testing.T) {
	redis := replicastest.StartRedis(t, "--maxmemory", "1")
	c := newCaddy(t, block("mcp_gateway", "separator __", block("server sample", "mcp_sample")),
		block("mcp_store redis redis://"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	arguments := map[string][]string{
		"the running Caddy": {"--address", strings.TrimPrefix(c.admin, "http://")},
		"a file":            {"--config", c.file},
	}
	for name, args := range arguments {
		c.runCheck(t, name, 0, `^mcp_store  up in \d+\.\d ms, but full  redis at redis://`, args...)
	}
	if s := c.store(t); !s.Up || !s.Full {
		t.Errorf("got %+v in the overview", s)
	}
	expect(t, redis, "+OK", "CONFIG", "SET", "maxmemory", "0")
	for name, args := range arguments {
		c.runCheck(t, name+", with room", 0, `^mcp_store  up in \d+\.\d ms  redis at redis://`, args...)
	}
	await.Until(t, "the store to have room", func() bool { return !c.store(t).Full })
	c.logged(t, "shared store is full", "shared store has room again")
}

// logged checks that each of these messages is in the log once.
func (c *caddy) logged(t *testing.T, messages ...string) {
	t.Helper()
	log, err := os.ReadFile(c.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range messages {
		if n := strings.Count(string(log), message); n != 1 {
			t.Errorf("logged %d times, want once: %s", n, message)
		}
	}
}

// TestStoreWithoutGateway checks that the admin API shows a store that only a mask uses.
func TestStoreWithoutGateway(t *testing.T) {
	redis := replicastest.StartRedis(t)
	c := newCaddy(t, "tool_result_mask\nrespond ok", "order tool_result_mask first",
		block("mcp_store redis redis://"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	if s := c.store(t); !s.Up || s.Address != "redis://"+redis.Addr {
		t.Errorf("got %+v in the overview", s)
	}
	if got := post(c.admin+"/mcp_gateway/store/check", ""); got.Status != http.StatusOK || !strings.Contains(got.Body,
		`"up":true`) {
		t.Errorf("got %d %s %v, want an available store", got.Status, got.Body, got.Err)
	}
}

// runCheck runs caddy mcp check, compares its status and output, and returns the output.
func (c *caddy) runCheck(t *testing.T, name string, status int, want string, args ...string) string {
	t.Helper()
	binary, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := caddyrun.Command(t.Context(), binary, filepath.Dir(c.file), append([]string{"mcp", "check"}, args...)...)
	cmd.Env = append(cmd.Env, c.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != status || !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%s: got status %d, want %d and %s\n%s%s", name, got, status, want, &out, &errs)
	}
	if all := out.String() + errs.String(); strings.Contains(all, "not-to-be-seen") || strings.Contains(all, sessionKey) {
		t.Errorf("%s: prints a secret:\n%s", name, all)
	}
	return out.String()
}

// A storeStatus is the state of the store in the overview of the admin API.
type storeStatus struct {
	Engine, Address, Error string
	Up, Full               bool
	Outages                int
	Waiting                int `json:"writes_waiting"`
}

func (c *caddy) store(t *testing.T) storeStatus {
	t.Helper()
	text := []byte(c.adminGet(t, "/mcp_gateway/overview"))
	var overview struct{ Store storeStatus }
	if err := json.Unmarshal(text, &overview); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "not-to-be-seen") || strings.Contains(string(text), sessionKey) {
		t.Errorf("the overview contains a secret: %s", text)
	}
	return overview.Store
}
