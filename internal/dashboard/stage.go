package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/fakemcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

const scrapeInterval = 2 * time.Second

// tokenSuffix is what makes the name of a client its token in the caddyfile.
const tokenSuffix = "-token-of-the-stage"

// caddyfile has servers of every kind, clients that may do different things, and a
// model behind a mask.
const caddyfile = `{
	admin 127.0.0.1:%[1]d
	persist_config off
	metrics
	grace_period 1s
}
:%[2]d {
	bind 127.0.0.1
	mcp_gateway {
		name local
		separator __
		mask 4000 2000 2000
		health_interval 2s
		health_timeout 1s
		pin_tools on
		rate 3000/1m burst 200

		client cline {
			token cline-token-of-the-stage
			redact "sk-[A-Za-z0-9]{20,}"
		}
		client ci {
			token ci-token-of-the-stage
			allow sample::* child::* pruner::*
			redact_fields path
		}
		client nightly {
			token nightly-token-of-the-stage
			rate 120/1m burst 15
		}

		server sample {
			mcp_sample
		}
		server child stdio %[3]q mcp-sample
		server tools stdio %[4]q child tools
		server search http://127.0.0.1:%[5]d/mcp
		server tracker http://127.0.0.1:%[6]d/mcp
		server pruner {
			mask off
			mcp_pruner {
				max_input_chars 60000
			}
		}
	}
	handle /v1/* {
		tool_result_mask {
			clear_at_least auto
			min_mask_chars 800
			route agent
		}
		reverse_proxy 127.0.0.1:%[7]d
	}
}
`

const prometheusConfig = `global:
  scrape_interval: %s
scrape_configs:
  - job_name: caddy
    static_configs:
      - targets: ["127.0.0.1:%d"]
`

// A stage is everything that runs: Caddy, what is behind it, and Prometheus.
type stage struct {
	gateway, admin, prometheus string

	search  *server
	started []func() // what ends it, in the order in which it was started
}

func startStage(ctx context.Context, caddy string) (_ *stage, err error) {
	if _, err := exec.LookPath("prometheus"); err != nil {
		return nil, errors.New("prometheus is not in PATH; it keeps what there is to draw (Debian: apt-get install prometheus)")
	}
	if caddy, err = filepath.Abs(caddy); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dashboard")
	if err != nil {
		return nil, err
	}
	s := &stage{started: []func(){func() { os.RemoveAll(dir) }}}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	ports, err := loopback.FreePorts(6)
	if err != nil {
		return nil, err
	}
	admin, gateway, search, tracker, model, prometheus := ports[0], ports[1], ports[2], ports[3], ports[4], ports[5]
	s.gateway, s.admin, s.prometheus = atPort(gateway), atPort(admin), atPort(prometheus)

	s.search = &server{port: search, handler: slowly(fakemcp.NewServer(), 0.02)}
	for _, sv := range []*server{s.search, {port: tracker, handler: flaky(slowly(fakemcp.NewServer(), 0.08))}, {port: model, handler: new(chatModel)}} {
		if err := sv.up(); err != nil {
			return nil, err
		}
		s.started = append(s.started, sv.down)
	}

	files := map[string]string{
		"Caddyfile":      fmt.Sprintf(caddyfile, admin, gateway, caddy, self, search, tracker, model),
		"prometheus.yml": fmt.Sprintf(prometheusConfig, scrapeInterval, admin),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := s.start(ctx, dir, gateway, caddy, "run", "--config", "Caddyfile"); err != nil {
		return nil, err
	}
	if err := s.start(ctx, dir, prometheus, "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
		"--log.level=warn", fmt.Sprintf("--web.listen-address=127.0.0.1:%d", prometheus)); err != nil {
		return nil, err
	}
	return s, nil
}

func atPort(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// start starts a program in the directory, and waits until it serves the port.
func (s *stage) start(ctx context.Context, dir string, port int, name string, args ...string) error {
	log := filepath.Join(dir, filepath.Base(name)+".log")
	output, err := os.Create(log)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	if err := cmd.Start(); err != nil {
		return err
	}
	awaited, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		cancel(cmp.Or(cmd.Wait(), errors.New("it has ended")))
		close(ended)
	}()
	s.started = append(s.started, func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	if err := loopback.Await(awaited, port); err != nil {
		said, _ := os.ReadFile(log)
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, said[max(0, len(said)-2000):])
	}
	return nil
}

// stop ends everything, the latest first.
func (s *stage) stop() {
	for _, end := range slices.Backward(s.started) {
		end()
	}
}

// A server is one on this machine that can go down and come back.
type server struct {
	port    int
	handler http.Handler

	mu   sync.Mutex
	http *http.Server
}

func (s *server) up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		return err
	}
	s.http = &http.Server{Handler: s.handler}
	go func(h *http.Server) { _ = h.Serve(listener) }(s.http)
	return nil
}

func (s *server) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.http.Close()
}

// slowly takes so many seconds for each request, more or less.
func slowly(next http.Handler, seconds float64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(rand.ExpFloat64() * seconds * float64(time.Second)))
		next.ServeHTTP(w, r)
	})
}

// flaky fails in one of sixteen cases.
func flaky(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rand.IntN(16) == 0 {
			http.Error(w, "try again", http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// A chatModel has nothing to say, but tells usage as a provider would that has the
// beginning of the last prompt in its cache, at four characters for a token.
type chatModel struct {
	mu   sync.Mutex
	last string
}

func (m *chatModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m.mu.Lock()
	cached := 0
	for cached < min(len(body), len(m.last)) && body[cached] == m.last[cached] {
		cached++
	}
	m.last = string(body)
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"1","object":"chat.completion","model":"sample","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":%d,"completion_tokens":120,"prompt_tokens_details":{"cached_tokens":%d}}}`, len(body)/4, cached/4)
}

// A door is where a client enters: all servers, or one of them. Habits do not share it.
type door struct {
	url, token, session string
}

func (d *door) call(ctx context.Context, tool string, args arguments) {
	d.ask(ctx, "tools/call", arguments{"name": tool, "arguments": args})
}

// ask begins a session if there is none, and forgets it when the server has.
func (d *door) ask(ctx context.Context, method string, params arguments) {
	if d.session == "" {
		d.post(ctx, "initialize", arguments{"protocolVersion": "2025-11-25", "capabilities": arguments{}, "clientInfo": arguments{"name": "load", "version": "1"}})
	}
	if d.post(ctx, method, params) == http.StatusNotFound {
		d.session = ""
	}
}

func (d *door) post(ctx context.Context, method string, params arguments) (status int) {
	message, _ := json.Marshal(arguments{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	header := http.Header{"Accept": {"application/json, text/event-stream"}, "Authorization": {"Bearer " + d.token}}
	if d.session != "" {
		header.Set("Mcp-Session-Id", d.session)
	}
	response := post(ctx, d.url, string(message), header)
	if response == nil {
		return 0
	}
	d.session = cmp.Or(response.Header.Get("Mcp-Session-Id"), d.session)
	return response.StatusCode
}

// post returns what was answered, the body read, or nil if nothing was.
func post(ctx context.Context, url, body string, header http.Header) *http.Response {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response
}
