package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestChildEndsWithItsStdin(t *testing.T) { // A39
	p := newPool(t, "")
	pid := p.client().pid()
	p.Close()
	equal(t, "process", exists(pid), false)
	equal(t, "end of stdin", p.events("eof"), 1)
	equal(t, "TERM", p.events("term"), 0)
}

func TestChildEndsWithTERM(t *testing.T) {
	p := newPoolOf(t, []string{"sh", "-c", `trap 'echo heard >>"$DS_LOG.term"; exit 0' TERM; read -r l; ` +
		`printf '%s\n' '{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; ` +
		`while :; do sleep 0.01; done`})
	p.client().initialize(`{}`)
	s, err := p.sharedServer("alpha:1", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	s.current().after = func(d time.Duration) <-chan time.Time {
		if d == termGrace {
			return nil // the child has unlimited time
		}
		equal(t, "grace", d, p.config.StopGrace)
		over := make(chan time.Time)
		close(over)
		return over
	}
	p.within("Close", p.Close)
	heard, err := os.ReadFile(p.journal + ".term")
	if err != nil || string(heard) != "heard\n" {
		t.Errorf("got %q, %v", heard, err)
	}
}

// recordStopWaits makes the stop of a child that ignores everything continue when the journal shows
// that the child has seen the end of stdin, and then TERM. It returns the durations that stop would
// wait.
func (p *testPool) recordStopWaits(c *child) *[]time.Duration {
	waits := new([]time.Duration)
	c.after = func(d time.Duration) <-chan time.Time {
		event := []string{"eof", "term"}[len(*waits)]
		*waits = append(*waits, d)
		p.eventually("the child logs "+event, func() bool { return p.events(event) == 1 })
		over := make(chan time.Time)
		close(over)
		return over
	}
	return waits
}

// 50 servers that ignore signals, with children that do the same, are stopped. No process may
// remain.
func TestStubbornChildrenAndGrandchildren(t *testing.T) { // A39
	var stops sync.WaitGroup
	for n := range 50 {
		p := newPool(t, "--ignore-term")
		stops.Go(func() {
			c := p.client()
			s, _ := p.sharedServer("alpha:1", nil, "")
			if n%2 == 0 {
				perSession(&p.config)
				c.initialize(`{}`)
				s = c.poolSession(p).server
			}
			pids := []int{c.pid()}
			for _, stubborn := range []string{"true", "false"} {
				pid, err := strconv.Atoi(c.call("spawn", `{"stubborn":`+stubborn+`}`))
				if err != nil {
					t.Error(err)
				}
				pids = append(pids, pid)
			}
			waits := p.recordStopWaits(s.current())
			p.within("Close", p.Close)
			equal(t, "waits", fmt.Sprint(*waits), fmt.Sprint([]time.Duration{p.config.StopGrace, termGrace}))
			for _, pid := range pids {
				p.eventually(fmt.Sprintf("process %d ends", pid), func() bool { return !exists(pid) })
			}
			equal(t, "end of stdin", p.events("eof"), 1)
			equal(t, "TERM", p.events("term"), 1)
		})
	}
	stops.Wait()
	if z := zombies(); len(z) > 0 {
		t.Errorf("zombies: %s", z)
	}
}

// Processes that a child has started do not outlive it. They do not delay the detection of its end.
func TestGrandchildrenEndWithTheChild(t *testing.T) {
	p := newPool(t, "")
	c := p.client()
	pid, err := strconv.Atoi(c.call("spawn", `{"stubborn":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.do(http.MethodPost, toolCall(`1`, "die", `{"code":3}`)); err == nil ||
		!strings.Contains(err.Error(),
			"exited with status 3") {
		t.Errorf("got %v", err)
	}
	p.eventually("the grandchild ends", func() bool { return !exists(pid) })

	t.Run("with its stdout open", func(t *testing.T) {
		script := `read -r l; printf '%s\n' '{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; read ` +
			`-r l; read -r l; ` +
			`sleep 300 & printf '{"id":2,"result":%s}\n' $!; exit 3`
		p := newPoolOf(t, []string{"sh", "-c", script})
		answer := p.client().post(request(`1`, "x", `{}`)).whole()
		pid, err := strconv.Atoi(strings.TrimSuffix(answer[strings.LastIndex(answer, ":")+1:], "}"))
		if err != nil {
			t.Fatal(answer)
		}
		p.eventually("the grandchild ends", func() bool { return !exists(pid) })
		p.until("the child ends", func() bool { return len(p.exited) == 1 })
	})
}

func TestTheEnvironment(t *testing.T) { // A40
	t.Setenv("A_SECRET_OF_CADDY", "x")
	dir := t.TempDir()
	p := newPool(t, "", func(c *Config) {
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/home", "API_KEY=$(id) ; x y"}
		c.Dir = dir
	})
	var env map[string]string
	if err := json.Unmarshal([]byte(p.client().call("env", `{}`)), &env); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/home", "API_KEY": "$(id) ; x y"}
	delete(env, "PWD") // set by exec
	equal(t, "environment", fmt.Sprint(env), fmt.Sprint(want))
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "directory", p.client().call("cwd", `{}`), dir)
}

func TestThereIsNoShell(t *testing.T) { // A40
	arg := `$(touch x); a b "c" * \`
	script := `read -r l; printf '{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},` +
		`"argument":"%s"}}\n' "$(printf %s "$1" | od -An -tx1 | tr -d ' \n')"; cat`
	p := newPoolOf(t, []string{"sh", "-c", script, "sh", arg})
	contains(
		t,
		"argument",
		p.client().post(request(`1`, "initialize", `{"protocolVersion":"2025-11-25"}`)).whole(),
		fmt.Sprintf(`"argument":"%x"`, arg),
	)
}

func TestStderrIsLogged(t *testing.T) { // A35
	p := newPool(t, "")
	pid := p.client().pid()
	long := strings.Repeat("y", 20_000)
	p.client().call("stderr", `{"lines":3,"text":"something to say"}`)
	p.client().call("stderr", `{"lines":2,"text":"`+long+`"}`)
	p.client().call("stderr", `{"lines":1,"text":"the last"}`)
	lines := func() []string {
		var lines []string
		for _, e := range p.logs.FilterMessage("stderr").FilterField(zap.String("mcp_server",
			"alpha")).FilterField(zap.Int("pid", pid)).All() {
			lines = append(lines, e.ContextMap()["line"].(string))
		}
		return lines
	}
	p.until("all lines are logged", func() bool { l := lines(); return len(l) > 0 && l[len(l)-1] == "the last" })
	want := []string{"something to say", "something to say", "something to say", long[:8<<10], long[:8<<10], "the last"}
	equal(t, "lines", strings.Join(lines(), "\n"), strings.Join(want, "\n"))
}

// A flood on stderr adds a limited number of lines to the log. The others are counted.
func TestStderrIsBounded(t *testing.T) {
	p := newPool(t, "")
	const lines = 5_000 // few enough to be read within drainTime, however slow the machine
	pid := p.client().pid()
	p.client().call("stderr", `{"lines":`+strconv.Itoa(lines)+`,"text":"x"}`)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	left := func() int64 {
		for _, e := range p.logs.FilterMessage("stderr lines not logged").All() {
			return e.ContextMap()["lines"].(int64)
		}
		return 0
	}
	p.until("lines not logged are counted", func() bool { return left() > 0 })
	logged := p.logs.FilterMessage("stderr").Len()
	equal(t, "logged", logged, throttleLines)
	equal(t, "logged and counted", left()+int64(logged), lines)
	equal(t, "warnings", p.logs.FilterMessage("too much output on stderr, some lines are not logged").Len(), 1)
}

func TestThrottle(t *testing.T) {
	var passed throttle
	now := time.Now()
	n := 0
	for pass := true; pass; n++ {
		pass, _ = passed.allow(8<<10, now)
	}
	equal(t, "long lines", n, throttleBytes/(8<<10)+1)
	pass, left := passed.allow(1, now.Add(throttleTime-1))
	equal(t, "short line after them", pass, false)
	equal(t, "reported too early", left, 0)
	pass, left = passed.allow(1, now.Add(throttleTime))
	equal(t, "later", pass, true)
	equal(t, "not logged", left, 2)
}

// Calls that time out show that a child does not respond, even without health checks. The gateway
// then pings it.
func TestSilentChildIsPinged(t *testing.T) {
	timeout := os.ErrDeadlineExceeded // a net.Error, like the timeout of the gateway
	for name, test := range map[string]struct {
		flags    string
		cause    error // why calls end
		together bool  // calls wait at the same time
		state    State // of a child that answers nothing
		back     bool  // the child is restarted
	}{
		"the child answers a ping":    {"", timeout, false, Running, false},
		"the child answers nothing":   {"--hang-ping", timeout, false, Silent, true},
		"clients leave":               {"--hang-ping", context.Canceled, false, Running, false},
		"calls wait at the same time": {"--hang-ping", timeout, true, Running, false},
		"clients leave at once":       {"--hang-ping", context.Canceled, true, Running, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, test.flags)
			p.restartSoon("alpha:1", mcp.Legacy)
			pid := p.client().pid()
			p.aliveTime = time.Hour
			if test.back {
				p.aliveTime = 100 * time.Millisecond
			}
			var giveUp []func()
			for range maxTimeouts {
				ctx, leave := context.WithCancelCause(t.Context())
				left := make(chan struct{})
				calls := len(p.received("tools/call"))
				go func() {
					defer close(left)
					_, _ = p.client().with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`))
				}()
				p.eventually("the child receives the call", func() bool { return len(p.received("tools/call")) > calls })
				equal(t, "state before", p.Status("alpha:1")[0].State, Running)
				giveUp = append(giveUp, func() {
					leave(test.cause)
					<-left
				})
				if !test.together {
					giveUp[len(giveUp)-1]()
				}
			}
			if test.together {
				for _, f := range giveUp {
					f()
				}
			}
			switch {
			case test.back:
				p.until("the child has restarted", func() bool { return p.restarts == 1 })
				equal(t, "closed stdin", p.events("eof"), 1)
			case test.flags == "":
				p.eventually("the child answers a ping", func() bool {
					return len(p.received("ping")) > 0 && p.Status("alpha:1")[0].State == test.state
				})
			default:
				equal(t, "state", p.Status("alpha:1")[0].State, test.state)
			}
			equal(t, "same process", p.client().pid() == pid, !test.back)
			if test.flags != "" { // otherwise the child has probably written after each call
				equal(t, "pinged", p.checkLogged(), test.cause == timeout && !test.together)
			}
		})
	}
}

// checkLogged reports whether the pool has logged that it checks a silent child.
func (p *testPool) checkLogged() bool {
	return p.logs.FilterMessage("calls timed out, checking whether the server is alive").Len() > 0
}

// A silent child that writes again is not restarted: it was busy, possibly with an abandoned call.
func TestSilentChildThatWritesAgain(t *testing.T) {
	p := newPool(t, "--hang-ping")
	pid := p.client().pid()
	s, _ := p.sharedServer("alpha:1", nil, "")
	c := s.current()
	for range maxTimeouts {
		call := &call{inbox: newInbox("", 1), queued: true, sentAt: time.Now()}
		if err := c.calls.register(call); err != nil {
			t.Fatal(err)
		}
		c.giveUp(call, os.ErrDeadlineExceeded)
	}
	equal(t, "state", s.status().State, Silent)
	p.until("the child is pinged", p.checkLogged)
	equal(t, "same process", p.client().pid(), pid)
	equal(t, "state", s.status().State, Running)
}

func TestNoiseIsCountedAndSeldomLogged(t *testing.T) { // A35
	p := newPool(t, "--banner")
	for range 5 {
		equal(t, "written", p.client().call("noise", `{"lines":100,"text":"{this is no JSON"}`), "written")
	}
	equal(t, "noise", p.noise, 503)
	if n := p.logs.FilterMessage("line on stdout is not a message").Len(); n < 3 || n > 10 {
		t.Errorf("logged %d times", n)
	}
}

func TestLongMessages(t *testing.T) { // A41
	for _, flags := range []string{"", "--framing content-length", "--result-first"} {
		t.Run("9 MiB "+flags, func(t *testing.T) {
			p := newPool(t, flags)
			equal(t, "length", len(p.client().call("big", `{"n":9437184}`)), 9<<20)
			if flags != "" {
				return // requests have the same framing
			}
			long := `{"name":"echo","arguments":{"x":"` + strings.Repeat("x", 9<<20) + `"}}`
			if p.client().post(request(`1`, "tools/call", long)).text() != long {
				t.Error("the echoed text differs")
			}
		})
		t.Run("too long "+flags, func(t *testing.T) {
			p := newPool(t, flags, func(c *Config) { c.MaxMessage = 100_000 })
			var calls sync.WaitGroup
			for range 5 {
				calls.Go(func() { equal(t, "slow", p.client().call("slow", `{"ms":20}`), "slept") })
				calls.Go(func() {
					r := p.client().post(toolCall(`"q"`, "big", `{"n":200000}`))
					contains(
						t,
						"answer",
						r.whole(),
						`"message":"the MCP server's answer is too large",`+
							`"data":{"code":"invalid_response","server_name":"alpha"}},"id":"q"}`,
					)
				})
			}
			calls.Wait()
			equal(t, "next", len(p.client().call("big", `{"n":90000}`)), 90_000)
			r := p.client().
				post(toolCall(`1`, "emit", `{"method":"notifications/x","params":{"x":"`+strings.Repeat("x",
					99_000)+`"}}`))
			if r.StatusCode == http.StatusOK {
				equal(t, "emitted", r.text(), "emitted")
			}
			equal(t, "children", len(p.started), 1)
		})
	}
	t.Run("a server request that is too long is refused", func(t *testing.T) {
		p := newPuppets(t, func(c *Config) { c.MaxMessage = 1000 })
		c := p.client().initialize(`{"sampling":{}}`)
		contains(t, "answer", c.post(say(`1`, `{"id":$ID,"result":1}`+"\n")).whole(), `"result":1`)
		p2 := newPoolOf(
			t,
			[]string{
				"sh",
				"-c",
				`read -r l; printf '%s\n' '{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; read -r l; ` +
					`read -r call; printf '{"method":"x","id":"long","params":"%01000d"}\n' 0; read -r refusal; printf '{"id":2,` +
					`"result":%s}\n' "$refusal"; cat`,
			},
			func(c *Config) {
				c.MaxMessage = 1000
			},
		)
		contains(t, "refusal", p2.client().post(request(`1`, "x", `{}`)).whole(), `"id":"long","error":{"code":-32600`)
	})
}

func TestDrain(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	stream := c.listen()
	// The test reads this response later.
	r := c.post(
		request(`1`, "tools/call", `{"name":"progress","arguments":{"steps":1},"_meta":{"progressToken":1}}`),
	)
	hanging := make(chan *http.Response)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		res, _ := p.client().with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		hanging <- res
	}()
	p.eventually("the child receives the call", func() bool { return strings.Contains(p.messages(), `"hang"`) })

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		p.Drain(t.Context(), time.Millisecond)
	}()
	equal(t, "end of the session's stream", stream.next(), "")
	contains(t, "progress", r.next(), "notifications/progress")
	equal(t, "a late call", p.client().call("echo", `{}`), `{"name":"echo","arguments":{}}`)
	again := c.listen() // Drain does not wait for it
	contains(t, "call in flight", r.next(), "done")
	r.Body.Close()
	select {
	case <-drained:
		t.Error("Drain returned during a call")
	default:
	}
	leave()
	<-hanging
	<-drained
	equal(t, "end of the late stream", again.next(), "")
	again.Body.Close()
	equal(t, "TERM signals", p.events("term"), 0)
	if _, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`)); err == nil {
		t.Error("call after Drain succeeded")
	}
	if err := p.Check(t.Context(), "alpha:1"); err == nil {
		t.Error("healthy after Drain")
	}
}

func TestDrainIsLimited(t *testing.T) {
	p := newPool(t, "")
	ended := make(chan error)
	go func() {
		_, err := p.client().do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		ended <- err
	}()
	p.inFlightIs(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.within("Drain", func() { p.Drain(ctx, time.Hour) })
	if err := <-ended; err == nil {
		t.Error("the call got a response")
	}
}

// Pools are closed during starts, calls, and the begin and end of sessions, after different numbers
// of requests.
func TestCloseAtAnyMoment(t *testing.T) {
	var pools sync.WaitGroup
	for n := range 24 {
		flags := []string{"", "--hang-init", "--exit-at-start 1", "--init-delay 0.01"}[n%4]
		p := newPool(t, flags, func(c *Config) {
			if n%8 >= 4 {
				perSession(c)
			}
		})
		pools.Go(func() {
			var users sync.WaitGroup
			begun := 0
			for u := range 4 {
				users.Go(func() {
					c := p.client()
					for {
						p.note(func() { begun++ })
						res, err := c.do(
							http.MethodPost,
							request(`0`, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{}}`),
						)
						if err != nil || res.StatusCode != http.StatusOK {
							return
						}
						c.session = res.Header.Get("Mcp-Session-Id")
						if u%2 == 0 {
							_, _ = c.do(http.MethodPost, toolCall(`1`, "echo", `{}`))
						}
						if _, err := c.do(http.MethodDelete, ""); err != nil {
							return
						}
						c.session = ""
					}
				})
			}
			moment := n
			if strings.HasPrefix(flags, "--hang-init") || strings.HasPrefix(flags, "--exit-at-start") {
				moment = n / 6 // each user makes one request
			}
			for i := range n % 6 {
				_, _ = p.client().do(http.MethodPost, notification("notifications/x", `{}`))
				p.until("the users have made requests", func() bool { return begun >= moment*(i+1)/(n%6) })
			}
			p.within("Close", p.Close)
			users.Wait()
		})
	}
	pools.Wait()
}

func TestTwoHundredPools(t *testing.T) {
	for n := range 200 {
		p := newPool(t, "", func(c *Config) {
			if n%2 == 0 {
				perSession(c)
			}
		})
		if n%10 == 0 { // most are never used
			p.client().initialize(`{}`).call("echo", `{}`)
		}
		p.Close()
	}
}

// Children of hosts that are no longer used end after their last response, and no new ones are
// started.
func TestUnusedHostsAreReleased(t *testing.T) {
	for _, change := range []func(*Config){func(*Config) {}, perSession} {
		p := newPool(t, "", change)
		p.Use("alpha:1", "alpha:2", "alpha:3", "beta:1")
		at := func(host string) *client {
			c := p.client()
			c.host = host
			return c.initialize(`{}`)
		}
		kept, removed, renamed := at("alpha:1"), at("alpha:2"), at("beta:1")
		pids := []int{kept.pid(), removed.pid(), renamed.pid()}

		p.Use("alpha:1", "gamma:1") // like the next configuration
		waiting := make(chan string)
		go func() { waiting <- removed.call("slow", `{"ms":300}`) }()
		p.eventually("the child receives the call", func() bool { return len(p.received("tools/call")) == 4 })
		p.within("Release", func() { p.Release(t.Context(), 0, "alpha:1", "alpha:2", "alpha:3", "beta:1") })

		equal(t, "call in flight", <-waiting, "slept")
		equal(t, "child of a host in use", kept.pid(), pids[0])
		for _, pid := range pids[1:] {
			equal(t, "child of an unused host runs", exists(pid), false)
		}
		equal(t, "session at an unused host", renamed.post(toolCall(`1`, "pid", `{}`)).StatusCode, http.StatusNotFound)
		if _, err := renamed.do(http.MethodPost,
			request(`1`, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{}}`)); !errors.Is(
			err,
			errStopped,
		) {
			t.Errorf("late initialize: %v", err)
		}
		p.Use("beta:1")
		renamed.session = ""
		equal(t, "new child after the host is used again", renamed.initialize(`{}`).pid() != pids[2], true)
		p.Use()
		at("delta:1").pid()
		p.within("Release", func() { p.Release(t.Context(), 0) })
		p.until("two children remain", func() bool { return len(p.started)-len(p.exited) == 2 })
	}
}

// Children do not inherit files that were not opened by Go either.
func TestChildrenInheritNoFiles(t *testing.T) {
	fd, err := syscall.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	script := fmt.Sprintf(`if true <&%d; then echo inherited; else echo kept; fi`, fd)
	p, err := startProcess([]string{"sh", "-c", script}, os.Environ(), "")
	if err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(p.stdout)
	<-p.exited
	equal(t, "file", strings.TrimSpace(string(said)), "kept")
	p.stdout.Close()
	p.stderr.Close()
}

// Processes of a child that started sessions of their own end with the child, if they can be found.
func TestProcessesThatLeaveTheGroup(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are found on Linux only")
	}
	const begin = `echo $$ >"$0"; exec sleep 300`
	for name, start := range map[string]string{
		"with inherited streams and no parent":     `( setsid sh -c '` + begin + `' "$1" & )`,
		"with its parent and no inherited streams": `setsid sh -c '` + begin + `' "$1" </dev/null >/dev/null 2>&1 &`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			p, err := startProcess([]string{"sh", "-c", start + "\ncat >/dev/null", "sh", file}, os.Environ(), "")
			if err != nil {
				t.Fatal(err)
			}
			pid := 0
			await.Until(t, "the pid", func() bool {
				text, _ := os.ReadFile(file)
				pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return pid > 0
			})
			p.stop(await.Patience)
			p.stdout.Close()
			p.stderr.Close()
			await.Until(t, "the process ends", func() bool { return !exists(pid) })
		})
	}
}
