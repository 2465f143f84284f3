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

// wallClocks are the places in the product where the time of day is read as a number,
// which the system may set back and forth. Everywhere else times are compared as Go
// has them, with a reading of the clock that is never set.
var wallClocks = map[string]string{
	"internal/gateway/session.go":         "when a session id was issued, which a replica must be able to read",
	"internal/gateway/visit.go":           "the same",
	"modules/mcpgateway/auth/hmac.go":     "the timestamp in a signature",
	"internal/inbound/admit.go":           "shown by the admin API: when a client was last there",
	"modules/mcpgateway/admin_clients.go": "the same",
	"modules/mcppruner/handshake.go":      "shown by the tool health",
	"internal/oauth/registration.go":      "until when a client secret is good, as the authorization server says",
	"internal/transcript/trajectory.go":   "when a message of a transcript was written, as that says",
	"internal/activity/activity.go":       "shown by the admin API: calls by day and by ten seconds",
	"internal/inbound/confirm.go":         "when a person was asked to confirm a call, which a replica must be able to read",
	"internal/toolpin/pins.go":            "shown by the admin API: when a tool was first seen",
}

// wallClock finds where the reading of the other clock is lost.
var wallClock = regexp.MustCompile(`time\.Unix(Milli|Micro)?\(|\.Unix(Milli|Micro|Nano)?\(\)|time\.Now\(\)[.\w()]*\.(Round|Truncate)\(`)

// A place that begins to depend on the time of day is to be looked at.
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
				t.Errorf("%s has %s: a clock that is set may break it", name, found)
			} else if found == nil && wallClocks[name] != "" {
				t.Errorf("%s has none any more", name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// unshipped are the folders that are not part of the binary.
var unshipped = map[string]bool{"internal/lab": true, "internal/mcptest": true, "internal/jsontest": true}

// A clock that is set forth and back, by an hour, a day and ten years: what depends on
// the time that has passed goes on, and what depends on the time of day does so.
//
// The clock of the machine is not touched. Caddy is built anew with a time.Now to which
// an offset is added, but not to its monotonic reading, as it is when a clock is set.
func TestClockJumps(t *testing.T) {
	path := os.Getenv("CADDY_CLOCK")
	if path == "" && !long {
		t.Skip("it takes minutes to build a Caddy with a clock that can be set: CHAOS=long, or name one in CADDY_CLOCK")
	}
	if path == "" {
		path = buildClock(t)
	}
	bad := newServer(t, map[string]func(*exchange){
		"silent": waits,
		"big":    func(x *exchange) { answer(x.w, x.id, text(strings.Repeat("x", 10_000))) },
	})
	const secret = "a secret that nobody else has, of some length"
	clock := filepath.Join(t.TempDir(), "clock")
	s := newStage(t, play{
		binary:  path,
		env:     []string{"WALL_CLOCK=" + clock},
		servers: []*httpServer{bad.Server},
		gateway: []string{block("server bad "+bad.URL+"/mcp", "timeout 1s"), "health_interval 200ms", "mask {\n\trecover on\n}"},
		site: []string{
			block("mcp_gateway", "separator __", "mcp_path /signed/mcp", "rpc_path /signed/api/mcp-gateway", block("auth hmac", "client alice {env.SECRET}", "window 5m"), "server bad "+bad.URL+"/mcp"),
			block("mcp_gateway", "separator __", "mcp_path /rated/mcp", "rpc_path /rated/api/mcp-gateway", "rate 6/1m burst 3", "server bad "+bad.URL+"/mcp"),
		},
	}.with("SECRET="+secret))
	c := map[way]*caller{}
	for _, w := range everyWay {
		c[w] = s.caller(t, w)
		c[w].meet(t, "bad")
		c[w].recovers(t, "bad")
	}
	rated := s.callerAt(t, "/rated", rpc)
	for got := (outcome{}); got.class != "429 rate_limited"; { // its tokens are used up
		got = rated.call(t, "bad", "echo", "")
	}
	handle := regexp.MustCompile(`obs_\w+`).FindString(c[joinedModern].call(t, "bad", "big", "").text)
	before := s.sign(t, secret, time.Now())
	if got := before(t); got != http.StatusOK {
		t.Fatalf("signed: %d", got)
	}
	children := fmt.Sprint(s.processes())

	const day = 24 * time.Hour
	for _, jump := range []struct {
		name   string
		offset time.Duration
	}{
		{"an hour forth", time.Hour}, {"two hours back", -time.Hour}, {"a day forth", day}, {"two days back", -day}, {"ten years forth", 3650 * day}, {"twenty years back", -3650 * day}, {"and right", 0},
	} {
		s.endure(t, jump.name, 64, func(o *ordeal) {
			set(t, clock, jump.offset)
			for w, class := range everywhere("timeout") {
				got := c[w].call(o, "bad", "silent", "")
				o.ended(w, got)
				if got.class != class {
					o.wrong(w, "ended with %s, want %s", got.class, class)
				}
			}
			if got := rated.call(o, "bad", "echo", ""); got.class != "429 rate_limited" && got.class != "200 result" || got.took > guard/2 {
				o.Errorf("rate: %s", got.class)
			}
			refused := 0
			for range 5 {
				if rated.call(o, "bad", "echo", "").class == "429 rate_limited" {
					refused++
				}
			}
			if refused < 2 {
				o.Error("the clock has filled buckets")
			}
			got := c[joinedModern].send(t.Context(), "", `"r"`, c[joinedModern].toolCall(`"r"`, "recover_observation", `{"id":"`+handle+`","start_char":5000,"end_char":5010}`))
			if got.class != "200 result" || !strings.Contains(got.text, "xxxxxxxxxx") {
				o.Errorf("an original is gone: %s %.300q", got.class, got.body)
			}
			now := time.Now()
			if got := s.sign(t, secret, now.Add(jump.offset))(t); got != http.StatusOK {
				o.Errorf("signed at the time of day: %d", got)
			}
			if got := s.sign(t, secret, now.Add(jump.offset+time.Hour))(t); got != http.StatusUnauthorized {
				o.Errorf("signed an hour ahead: %d", got)
			}
			if got := before(t); got != http.StatusUnauthorized {
				o.Errorf("A77 a request was let in again: %d", got)
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

// with adds to the environment.
func (p play) with(env ...string) play {
	p.env = append(p.env, env...)
	return p
}

// sign signs a call, which can be sent any number of times.
func (s *stage) sign(t *testing.T, secret string, at time.Time) (send func(*testing.T) (status int)) {
	t.Helper()
	const path, body = "/signed/api/mcp-gateway/bad/rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}`
	nonce, digest := rand.Text(), sha256.Sum256([]byte(body))
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = fmt.Fprintf(mac, "MCP-HMAC-SHA256\n%d\n%s\nPOST\n%s\n%x", at.Unix(), nonce, path, digest)
	header := fmt.Sprintf("MCP-HMAC-SHA256 client=alice, timestamp=%d, nonce=%s, signature=%s", at.Unix(), nonce, hex.EncodeToString(mac.Sum(nil)))
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

// set sets the clock of Caddy so far from that of the machine.
func set(t *testing.T, clock string, offset time.Duration) {
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
		t.Fatalf("the clock is %s from where it should be", off)
	}
}

// buildClock builds a Caddy whose clock can be set.
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
		t.Fatalf("time.Now is not what it was in %s", original)
	}
	source = bytes.Replace(source, []byte(reading), []byte("\tsec, nsec, mono := runtimeNow()\n\tsec += WallOffset\n\tif mono == 0 {"), 1)
	source = append(source, "\n// WallOffset is how many seconds the clock is off.\nvar WallOffset int64\n"...)
	wrong, overlay, binary := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "caddy")
	replace, _ := json.Marshal(map[string]any{"Replace": map[string]string{original: wrong}})
	for file, text := range map[string][]byte{wrong: source, overlay: replace} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-tags", "nobadger,nomysql,nopgx", "-overlay", overlay, "-o", binary, "./testdata/clock")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}
