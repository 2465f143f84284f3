//go:build linux

package chaos

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// wallClocks are the files that use the time of day as a number, which changes when the clock is
// set. All other code compares times with Go's monotonic clock.
var wallClocks = map[string]string{
	"internal/gateway/clients.go":         "when a session id was issued, for other replicas",
	"internal/gateway/ticket.go":          "the same",
	"modules/mcpgateway/auth/hmac.go":     "the timestamp in a signature",
	"internal/inbound/admit.go":           "in the admin API: when a client was last seen",
	"modules/mcpgateway/admin_servers.go": "the same",
	"modules/mcppruner/request.go":        "in the tool health",
	"internal/oauth/registration.go":      "when a client secret expires, from the authorization server",
	"internal/transcript/trajectory.go":   "when a message of a transcript was written, from the transcript",
	"internal/activity/activity.go":       "in the admin API: calls by day and by ten seconds",
	"internal/inbound/elicitation.go":     "when a confirmation was requested, for other replicas",
	"internal/toolpin/pins.go":            "in the admin API: when a tool was first seen",
}

// wallClock matches code that discards the monotonic reading.
var wallClock = regexp.MustCompile(`time\.Unix(Milli|Micro)?\(|\.Unix(Milli|Micro|Nano)?\(\)|time\.Now\(\)[.\w()]*\.(Round|Truncate)\(`)

// TestClockIsReadAsTimeOfDay fails if another file starts to depend on the time of day.
func TestClockIsReadAsTimeOfDay(t *testing.T) {
	for _, root := range []string{"modules", "internal"} {
		err := filepath.WalkDir(filepath.Join("../../..", root), func(path string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel("../../..", path)
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == "testdata" || unshipped[name]):
				return fs.SkipDir
			case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			source, err := os.ReadFile(path)
			if found := wallClock.Find(source); found != nil && wallClocks[name] == "" {
				t.Errorf("%s has %s, which changes when the clock is set", name, found)
			} else if found == nil && wallClocks[name] != "" {
				t.Errorf("%s no longer uses the time of day: remove it from wallClocks", name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// unshipped are directories that are not part of the binary.
var unshipped = map[string]bool{"internal/lab": true, "internal/mcptest": true, "internal/jsontest": true,
	"internal/loopback": true}

// TestClockJumps sets the clock forward and back, by an hour, a day and ten years. Code that
// measures elapsed time must not be affected; code that uses the time of day must follow it.
//
// The test does not change the clock of the machine. It builds Caddy with a time.Now that adds
// an offset to the time of day but not to the monotonic reading, as when a clock is set.
func TestClockJumps(t *testing.T) {
	path := os.Getenv("CADDY_CLOCK")
	if path == "" && !long {
		t.Skip("building a Caddy with an adjustable clock takes minutes: set CHAOS=long, or CADDY_CLOCK to its path")
	}
	if path == "" {
		path = buildClock(t)
	}
	bad := newServer(t, map[string]func(*exchange){
		"silent": hangs,
		"big":    func(x *exchange) { answer(x.w, x.id, text(strings.Repeat("x", 10_000))) },
	})
	const secret = "a secret of some length for the test of clocks"
	clock := filepath.Join(t.TempDir(), "clock")
	s := newTestbed(t, testbedConfig{
		binary:  path,
		env:     []string{"WALL_CLOCK=" + clock},
		servers: []*httpServer{bad.Server},
		gateway: []string{block("server bad "+bad.URL+"/mcp", "timeout 1s"), "health_interval 200ms",
			"mask {\n\trecover on\n}"},
		site: []string{
			block("mcp_gateway", "separator __", "mcp_path /signed/mcp", "rpc_path /signed/api/mcp-gateway",
				block("auth hmac", "client alice {env.SECRET}", "window 5m"), "server bad "+bad.URL+"/mcp"),
			block("mcp_gateway", "separator __", "mcp_path /rated/mcp", "rpc_path /rated/api/mcp-gateway", "rate 6/1m burst 3",
				"server bad "+bad.URL+"/mcp"),
		},
	}.with("SECRET="+secret))
	c := map[endpoint]*testClient{}
	for _, w := range endpoints {
		c[w] = s.initializedClient(t, w)
		c[w].initialize(t, "bad")
		c[w].awaitRecovery(t, "bad")
	}
	rated := s.initializedClientAt(t, "/rated", rpc)
	for got := (outcome{}); got.class != "429 rate_limited"; { // use up its rate
		got = rated.call(t, "bad", "echo", "")
	}
	handle := regexp.MustCompile(`obs_\w+`).FindString(c[joinedModern].call(t, "bad", "big", "").text)
	before := s.sign(t, secret, time.Now())
	if got := before(t); got != http.StatusOK {
		t.Fatalf("signed request: got %d, want 200", got)
	}
	children := fmt.Sprint(s.processes())

	const day = 24 * time.Hour
	for _, jump := range []struct {
		name   string
		offset time.Duration
	}{
		{"an hour forward", time.Hour}, {"two hours back", -time.Hour}, {"a day forward", day}, {"two days back", -day},
		{"ten years forward", 3650 * day}, {"twenty years back", -3650 * day}, {"correct again", 0},
	} {
		s.runFault(t, jump.name, 64, func(o *faultRun) {
			setClock(t, clock, jump.offset)
			for w, class := range gatewayError("timeout") {
				got := c[w].call(o, "bad", "silent", "")
				o.record(w, got)
				if got.class != class {
					o.failOnce(w, "ended with %s, want %s", got.class, class)
				}
			}
			if got := rated.call(o, "bad", "echo", ""); got.class != "429 rate_limited" && got.class != "200 result" ||
				got.took > testTimeout/2 {
				o.Errorf("rate: got %s", got.class)
			}
			refused := 0
			for range 5 {
				if rated.call(o, "bad", "echo", "").class == "429 rate_limited" {
					refused++
				}
			}
			if refused < 2 {
				o.Error("the clock change has refilled the rate")
			}
			got := c[joinedModern].send(t.Context(), "", `"r"`, c[joinedModern].toolCall(`"r"`, "recover_observation",
				`{"id":"`+handle+`","start_char":5000,"end_char":5010}`))
			if got.class != "200 result" || !strings.Contains(got.text, "xxxxxxxxxx") {
				o.Errorf("recovering an original: got %s %.300q", got.class, got.body)
			}
			now := time.Now()
			if got := s.sign(t, secret, now.Add(jump.offset))(t); got != http.StatusOK {
				o.Errorf("signed at the time of day: got %d, want 200", got)
			}
			if got := s.sign(t, secret, now.Add(jump.offset+time.Hour))(t); got != http.StatusUnauthorized {
				o.Errorf("signed an hour ahead: got %d, want 401", got)
			}
			if got := before(t); got != http.StatusUnauthorized {
				o.Errorf("A77 repeated signed request: got %d, want 401", got)
			}
			if now := fmt.Sprint(s.processes()); now != children {
				o.Errorf("children were %s, now %s", children, now)
			}
			for _, c := range c {
				c.http.CloseIdleConnections()
			}
			rated.http.CloseIdleConnections()
		})
	}
}

// with adds to the environment of Caddy.
func (p testbedConfig) with(env ...string) testbedConfig {
	p.env = append(p.env, env...)
	return p
}

// sign signs a call and returns a function that sends it. The function can be called repeatedly.
func (s *testbed) sign(t *testing.T, secret string, timestamp time.Time) (send func(*testing.T) (status int)) {
	t.Helper()
	const path, body = "/signed/api/mcp-gateway/bad/rpc",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}`
	nonce, digest := rand.Text(), sha256.Sum256([]byte(body))
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = fmt.Fprintf(mac, "MCP-HMAC-SHA256\n%d\n%s\nPOST\n%s\n%x", timestamp.Unix(), nonce, path, digest)
	header := fmt.Sprintf("MCP-HMAC-SHA256 client=alice, timestamp=%d, nonce=%s, signature=%s", timestamp.Unix(), nonce,
		hex.EncodeToString(mac.Sum(nil)))
	return func(t *testing.T) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", header)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
}

// setClock sets the offset of Caddy's clock from that of the machine.
func setClock(t *testing.T, clock string, offset time.Duration) {
	t.Helper()
	conn, err := net.Dial("unix", clock)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = fmt.Fprintln(conn, int64(offset.Seconds()))
	var now int64
	if _, err := fmt.Fscan(conn, &now); err != nil {
		t.Fatal(err)
	}
	if off := time.Until(time.Unix(now, 0)) - offset; off.Abs() > time.Minute {
		t.Fatalf("the clock is off by %s", off)
	}
}

// buildClock builds a Caddy with an adjustable clock.
func buildClock(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src/time/time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	const reading = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	if bytes.Count(source, []byte(reading)) != 1 {
		t.Fatalf("unexpected source of time.Now in %s", original)
	}
	source = bytes.Replace(source, []byte(reading),
		[]byte("\tsec, nsec, mono := runtimeNow()\n\tsec += WallOffset\n\tif mono == 0 {"), 1)
	source = append(source, "\n// WallOffset is how many seconds the clock is off.\nvar WallOffset int64\n"...)
	wrong, overlay, binary := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json"),
		filepath.Join(dir, "caddy")
	replace, _ := json.Marshal(map[string]any{"Replace": map[string]string{original: wrong}})
	for file, text := range map[string][]byte{wrong: source, overlay: replace} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-tags", "nobadger,nomysql,nopgx", "-overlay", overlay, "-o", binary,
		"./testdata/clock")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}
