package replicastest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

// A Redis is a redis-server of a test, on a port of the loopback interface. It keeps nothing on
// disk, unless its arguments say so.
type Redis struct {
	// Addr is its host and port. It stays the same when the server is started again.
	Addr string

	t       testing.TB
	args    []string
	command *exec.Cmd
	exited  chan struct{} // closed when the process has ended
	output  *output
}

// StartRedis starts a redis-server with more arguments than its port and directory, and waits until
// it listens. It is stopped when the test ends. Without redis-server, the test is skipped.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	return start(t, append([]string{"--save", ""}, args...)...)
}

// StartSentinel starts a sentinel with a configuration file, which the sentinel changes. It is
// stopped like the server of StartRedis.
func StartSentinel(t testing.TB, file string) *Redis {
	t.Helper()
	return start(t, file, "--sentinel")
}

func start(t testing.TB, args ...string) *Redis {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed: on Debian, apt-get install redis-server")
	}
	port := strconv.Itoa(FreePort(t))
	r := &Redis{
		Addr: net.JoinHostPort("127.0.0.1", port), t: t,
		args: append(args, "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir()),
	}
	t.Cleanup(r.Stop)
	r.Restart()
	return r
}

// FreePort returns a port of the loopback interface on which nothing listens.
func FreePort(t testing.TB) int {
	t.Helper()
	ports, err := loopback.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// Restart stops the server, if it runs, and starts it again on the same port.
func (r *Redis) Restart() {
	r.t.Helper()
	r.Stop()
	r.output = new(output)
	r.command = exec.Command("redis-server", r.args...)
	r.command.Stdout, r.command.Stderr = r.output, r.output
	if err := r.command.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.exited = make(chan struct{})
	go func(command *exec.Cmd, exited chan struct{}) {
		_ = command.Wait() // the output says why
		close(exited)
	}(r.command, r.exited)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-r.exited:
			r.t.Fatalf("redis-server does not run: %s", r.output)
		default:
		}
		if conn, err := net.Dial("tcp", r.Addr); err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("redis-server does not listen at %s: %s", r.Addr, r.output)
		}
	}
}

// Stop ends the server at once, as kill -9 does.
func (r *Redis) Stop() {
	if r.command != nil {
		r.signal(syscall.SIGKILL)
		<-r.exited
	}
}

// Pause stops the process. Connections stay open, but get no responses.
func (r *Redis) Pause() { r.signal(syscall.SIGSTOP) }

// Continue undoes Pause.
func (r *Redis) Continue() { r.signal(syscall.SIGCONT) }

func (r *Redis) signal(s os.Signal) {
	_ = r.command.Process.Signal(s) // fails if the process has ended
}

// Do sends a command, and returns up to 64 KiB of the response in the protocol of Redis, such as
// +OK.
func (r *Redis) Do(args ...string) string {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.Addr)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	request := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		request = fmt.Appendf(request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := conn.Write(request); err != nil {
		r.t.Fatal(err)
	}
	answer := make([]byte, 64<<10)
	n, err := conn.Read(answer)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(bytes.TrimSpace(answer[:n]))
}

// An output collects the output of a process.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
