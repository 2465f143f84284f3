package integration

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// The roots of one client never apply to a server that others share, before, during or after its
// session. The server is the official one: roots replace the directories that it was started
// with.
func TestSecurityRootsOfASharedChild(t *testing.T) {
	isolate(t)
	ours, theirs := t.TempDir(), t.TempDir()
	for dir, text := range map[string]string{ours: "ours", theirs: "theirs"} {
		if err := os.WriteFile(filepath.Join(dir, "file.txt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := "server files stdio node " + nodeModules + "@modelcontextprotocol/server-filesystem/dist/index.js "
	for _, test := range []struct {
		name    string
		options string // further lines of the server
		answer  string // answer directive of the gateway
		started string // the directory that the server is started with
		asks    bool   // the client receives roots/list
		says    bool   // the log has a warning
	}{
		{"shared", "isolation shared", "", ours, false, true},
		{"shared, with roots", "roots file://" + ours, "", theirs, false, false},
		{"shared, with an answer", "isolation shared", block("answer files roots/list", "roots file://"+ours), theirs, false,
			false},
		{"per session", "isolation session", "", ours, true, false},
	} {
		for _, early := range []bool{true, false} {
			name := test.name + ", after another client"
			if early {
				name = test.name + ", as the first client"
			}
			t.Run(name, func(t *testing.T) {
				log := filepath.Join(t.TempDir(), "log")
				address := freeAddress(t)
				load(t, block("", block("log", "output file "+log))+"\n"+site(address, gateway(
					// RUN makes each child different
					block(files+test.started, test.options, "start_timeout 2m", "env RUN "+quote(name)), child("other"), test.answer)))
				url := "http://" + address
				read := func(c *legacyClient, dir string) string {
					return c.use("files::read_text_file", `{"path":`+quote(filepath.Join(dir, "file.txt"))+`}`)
				}
				direct := func(dir string) string {
					return use(t, rpcAt(url, "files"), "read_text_file", `{"path":`+quote(filepath.Join(dir, "file.txt"))+`}`)
				}
				others := func(when string, c *legacyClient) {
					t.Helper()
					if got := read(c, ours); got != "ours" {
						t.Errorf("%s, the client reads %q", when, got)
					}
					if got := read(c, theirs); !strings.Contains(got, "Access denied") {
						t.Errorf("%s, the client reads %q", when, got)
					}
					if got := direct(ours); got != "ours" {
						t.Errorf("%s, /rpc reads %q", when, got)
					}
					if got := direct(theirs); !strings.Contains(got, "Access denied") {
						t.Errorf("%s, /rpc reads %q", when, got)
					}
				}

				var bob *legacyClient
				if !early {
					await.Until(t, "the directories of the configuration", func() bool { return direct(ours) == "ours" })
					bob = newListeningClient(t, url, `{}`)
					others("before", bob)
				}
				alice := newListeningClient(t, url, `{"roots":{"listChanged":true}}`)
				alice.setAnswers(func(mcpclient.Message) string { return `"result":{"roots":[{"uri":"file://` + theirs + `"}]}` })
				alice.notify("notifications/roots/list_changed", "")
				await.Until(t, "the directories of the configuration", func() bool { return direct(ours) == "ours" })
				if test.asks {
					await.Until(t, "its roots to be used", func() bool { return read(alice, theirs) == "theirs" })
				} else {
					others("the client with roots", alice)
				}
				if bob == nil {
					bob = newListeningClient(t, url, `{}`)
				}
				others("during its session", bob)
				send(t, client, "DELETE", joinedAt(url), "", alice.Session)
				others("after its session", bob)
				others("after its session", newListeningClient(t, url, `{}`))

				if asked := alice.receivedMessages("roots/list"); !test.asks && len(asked) > 0 {
					t.Errorf("the client received %v", asked)
				}
				const warning = "client roots are not forwarded to a shared server"
				text, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				want := 0
				if test.says {
					want = 1
				}
				if n := strings.Count(string(text), `"`+warning+`","mcp_server":"files"`); n != want {
					t.Errorf("the log has the warning %d times, want %d", n, want)
				}
			})
		}
	}
}

// Clients of a shared server do not affect each other's log levels, subscriptions and
// notifications.
func TestSecurityStateOfASharedChild(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("alpha"), journal.env())))
	alice, bob := newListeningClient(t, url, fullCapabilities), newListeningClient(t, url, fullCapabilities)

	t.Run("subscriptions", func(t *testing.T) {
		bob := bob.withTest(t)
		uri := bob.list("resources/list", "uri")[0]
		bob.result("resources/subscribe", `{"uri":`+quote(uri)+`}`)
		own := ""
		await.Until(t, "the subscription", func() bool {
			if all := journal.messages(t, "resources/subscribe"); len(all) == 1 {
				own = strings.Trim(all[0].Param("uri"), `"`)
			}
			return own != ""
		})
		post(t, rpcAt(url, "alpha"), rpc("resources/unsubscribe", `{"uri":`+quote(own)+`}`))
		use(t, rpcAt(url, "alpha"), "touch", `{"uri":`+quote(own)+`}`)
		bob.awaitMessages("notifications/resources/updated", 1)
	})
	t.Run("log levels", func(t *testing.T) {
		alice, bob := alice.withTest(t), bob.withTest(t)
		alice.result("logging/setLevel", `{"level":"debug"}`)
		bob.result("logging/setLevel", `{"level":"error"}`)
		post(t, rpcAt(url, "alpha"), rpc("logging/setLevel", `{"level":"emergency"}`))
		var levels []string
		for _, m := range journal.messages(t, "logging/setLevel") {
			levels = append(levels, m.Param("level"))
		}
		if strings.Join(levels, " ") != `"debug"` {
			t.Errorf("the server received the levels %v", levels)
		}
		alice.use("alpha::emit", `{"method":"notifications/message","params":{"level":"info","data":"for alice"}}`)
		bob.use("alpha::emit", `{"method":"notifications/message","params":{"level":"info","data":"not for bob"}}`)
		bob.use("alpha::emit", `{"method":"notifications/message","params":{"level":"error","data":"for bob"}}`)
		if got := alice.awaitMessages("notifications/message", 1); !strings.Contains(got[0].Raw, "for alice") {
			t.Errorf("alice received %s", got[0].Raw)
		}
		if got := bob.awaitMessages("notifications/message", 1); !strings.Contains(got[0].Raw, "for bob") {
			t.Errorf("bob received %s", got[0].Raw)
		}
	})
	t.Run("changed roots", func(t *testing.T) {
		alice.withTest(t).notify("notifications/roots/list_changed", "")
		alice.withTest(t).notify("notifications/their/own", "")
		await.Until(t, "the other notification",
			func() bool { return len(journal.entries(t, "notifications/their/own")) == 1 })
		if n := len(journal.entries(t, "notifications/roots/list_changed")); n != 0 {
			t.Errorf("the server received it %d times, want 0", n)
		}
	})
}

// Output that a child prints, also on behalf of a client, uses a limited part of the log and
// hides none of its responses.
func TestSecurityOutputOfAChild(t *testing.T) {
	isolate(t)
	log, address := filepath.Join(t.TempDir(), "log"), freeAddress(t)
	load(t, block("", block("log", "output file "+log))+"\n"+site(address, gateway(child("alpha"))))
	endpoint := rpcAt("http://"+address, "alpha")
	for _, line := range []string{"Content-Length: 99999999999", "Content-Length: 99999999999\\r\\n\\r",
		"Content-Length: 1000\\r\\n\\r"} {
		if got := use(t, endpoint, "noise", `{"lines":2,"text":"`+line+`"}`); got != "written" {
			t.Errorf("%s: %s", line, got)
		}
		if got := use(t, endpoint, "slow", `{"ms":0}`); got != "slept" {
			t.Errorf("after %s: %s", line, got)
		}
	}
	if got := use(t, endpoint, "stderr", `{"lines":1000000,"text":"x"}`); got != "written" {
		t.Errorf("got %q, want %q", got, "written")
	}
	await.Until(t, "the log message about omitted lines", func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "some lines are not logged")
	})
	load(t, site(address, gateway("server other http://127.0.0.1:1")))
	size := func() int64 {
		info, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if n := size(); n > 1<<20 {
		t.Errorf("the log has %d bytes, want at most 1 MiB", n)
	}
}

func TestSecurityByteOrderMark(t *testing.T) {
	isolate(t)
	script := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '\\357\\273\\277'\nexec "+childProgram()+" alpha\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	url := serve(t, gateway(block("server alpha stdio "+script, "start_timeout 5s")))
	if got := use(t, rpcAt(url, "alpha"), "slow", `{"ms":0}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
}

// A child does not inherit Caddy's file descriptors, but Caddy itself can use them.
func TestSecurityFilesOfCaddy(t *testing.T) {
	isolate(t)
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("no /proc here")
	}
	address := freeAddress(t)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	secret, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	dir := t.TempDir()
	config, found := filepath.Join(dir, "Caddyfile"), filepath.Join(dir, "found")
	script := "ls /proc/self/fd/ >" + found + "; exec " + childProgram() + " alpha"
	text := withAdmin("http://"+address+" {\nbind fd/3\n"+gateway("server alpha stdio sh -c `"+script+"`")+"\n}\n",
		freeAddress(t))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := caddy(t, "run", "--config", config)
	cmd.ExtraFiles = []*os.File{socket, secret}
	r := startCaddy(t, cmd)
	defer r.stop(t)
	if got := use(t, rpcAt("http://"+address, "alpha"), "slow", `{"ms":0}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	files, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	// 3 is the directory that ls reads.
	if got := strings.Join(strings.Fields(string(files)), " "); got != "0 1 2 3" {
		t.Errorf("a child has the file descriptors %s", got)
	}
}

// One client cannot end the children of another's sessions, or start an unlimited number of
// processes.
func TestSecurityChildrenOfOthers(t *testing.T) {
	isolate(t)
	const alice, bob = "alice-AbCdEf0123456789", "bob-AbCdEf0123456789"
	journal, begin := newJournal(t), time.Now()
	url := serve(t, gateway(block("auth token", "alice "+alice, "bob "+bob), block(child("own"), "isolation session",
		"max_sessions 3"),
		block(child("many"), "isolation session", "max_sessions 200", "start_timeout 2s", journal.env())))
	for name, endpoint := range map[string]string{"one server": mcpAt(url, "own"), "aggregate": joinedAt(url)} {
		t.Run(name, func(t *testing.T) {
			hello := rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test",`+
				`"version":"1"}}`)
			pid := func(session string) string {
				tool := "pid"
				if endpoint == joinedAt(url) {
					tool = "own::pid"
				}
				return use(t, endpoint, tool, `{}`, session, bearer(bob))
			}
			got := post(t, endpoint, hello, bearer(bob), acceptBoth)
			session := "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
			before := pid(session)
			for range 6 {
				post(t, endpoint, hello, bearer(alice), acceptBoth)
			}
			if after := pid(session); after != before {
				t.Errorf("the other client's child was %s, is %s", before, after)
			}
		})
	}
	var refused atomic.Int32
	var asked sync.WaitGroup
	for range 150 { // 50 may start at once, then 5 per second; 10 wait
		asked.Go(func() {
			got := post(t, mcpAt(url, "many"), rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
				`"clientInfo":{"name":"test","version":"1"}}`), bearer(alice), acceptBoth)
			if got.StatusCode != 503 {
				return
			}
			refused.Add(1)
			if got.Header.Get("Retry-After") == "" {
				t.Error("503 without Retry-After")
			}
		})
	}
	asked.Wait()
	started := len(journal.entries(t, "start"))
	if most := 51 + 5*int(time.Since(begin).Seconds()+1); refused.Load() == 0 || started > most || started < 10 {
		t.Errorf("%d children were started for one client, want at most %d; %d were refused", started, most, refused.Load())
	}
	t.Logf("%d started, %d refused", started, refused.Load())
}

// Memory of requests in flight to a child is limited to a factor of their size.
func TestSecurityMemoryOfRequests(t *testing.T) {
	isolate(t)
	const calls, size = 32, 5 << 20
	// do not time out while the child is stopped
	url := serve(t, gateway("in_flight_limit 1GiB", "response_timeout 10m", child("alpha")))
	for name, test := range map[string]struct {
		at, tool string
		factor   float64
	}{
		"one server": {mcpAt(url, "alpha"), "slow", 1.5},
		"aggregate":  {joinedAt(url), "alpha::slow", 1.5},
	} {
		t.Run(name, func(t *testing.T) {
			session := newSession(t, test.at)
			pid := pidAt(t, rpcAt(url, "alpha"))
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
			heap := func() float64 {
				_, after, _ := strings.Cut(admin(t, "GET", "/debug/pprof/heap?gc=1&debug=1", "").body, "# HeapAlloc = ")
				line, _, _ := strings.Cut(after, "\n")
				n, err := strconv.ParseFloat(line, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := heap()
			padding := strings.Repeat("x", size)
			var waiting []<-chan httpResponse
			for range calls {
				waiting = append(waiting, beginCall(t, test.at, test.tool, `{"ms":0,"padding":"`+padding+`"}`, session))
			}
			await.Until(t, "all calls to wait for the child", func() bool {
				stacks := admin(t, "GET", "/debug/pprof/goroutine?debug=2", "").body
				return strings.Count(stacks, "stdio.(*child).sendEdited(")+
					strings.Count(stacks, "stdio.(*roundTrip).firstMessage(") == calls
			})
			if got := (heap() - before) / (calls * size); got > test.factor {
				t.Errorf("%.2f times the bytes in flight are in memory, want at most %.1f", got, test.factor)
			} else {
				t.Logf("%.2f times the bytes in flight are in memory", got)
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
			for _, call := range waiting {
				if got := <-call; toolText(t, answerIn(got.body)) != "slept" {
					t.Errorf("%s %.200s", got.Status, got.body)
				}
			}
		})
	}
}
