package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/process"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

// An instance is a contestant that was started and serves its port.
type instance struct {
	*contestant
	process  *process.Process // nil without a program
	endpoint string
	dialect  load.Dialect
	token    string // token of clients, or empty
	dir      string
}

// open opens a session.
func (r *instance) open(ctx context.Context) (*load.Client, error) {
	return load.Open(ctx, r.endpoint, r.dialect, r.token)
}

// An attempt is what a client does with a contestant to see if it works.
type attempt func(context.Context, *load.Client) error

// start starts a contestant and waits until try succeeds. If try is nil, it waits only until
// the port is served.
func (c *contestant) start(
	ctx context.Context, programs *programs, servers []server, s setup, try attempt,
) (_ *instance, err error) {
	target := c.endpointFor(s)
	if target.unsupported != "" {
		return nil, errors.New(target.unsupported)
	}
	r := &instance{contestant: c, dialect: target.dialect}
	if s.guarded {
		r.token = token
	}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	address, err := url.Parse(servers[0].url)
	if err != nil {
		return nil, err
	}
	if target.path != "" {
		address.Path = target.path
	}
	if c.command != nil {
		if _, err := c.version(); err != nil {
			return nil, err
		}
		ports, err := loopback.FreePorts(1)
		if err != nil {
			return nil, err
		}
		address.Host = fmt.Sprintf("127.0.0.1:%d", ports[0])
		if s.tls {
			address.Scheme = "https"
		}
		if err := r.run(ctx, site{programs, s, "", ports[0], servers}); err != nil {
			return nil, err
		}
	}
	r.endpoint = address.String()
	if try == nil {
		return r, nil
	}
	return r, r.awaitResponse(ctx, try)
}

// run runs the command of a contestant until its port is served.
func (r *instance) run(ctx context.Context, s site) (err error) {
	if r.dir, err = os.MkdirTemp("", "bench-gateway-"); err != nil {
		return err
	}
	s.dir = r.dir
	files := map[string]string{}
	if r.files != nil {
		files = r.files(s)
	}
	if s.tls {
		if files[certFile], files[keyFile], err = selfSigned(); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(s.file(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	argv := r.command(s)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NODE_ENV=production", "HOME=" + s.dir, "XDG_DATA_HOME=" + s.dir,
		"XDG_CONFIG_HOME=" + s.dir, "XDG_STATE_HOME=" + s.dir}
	cmd.Env = append(cmd.Env, r.env...)
	if r.process, err = process.Start(cmd); err != nil {
		return err
	}
	return r.process.Await(ctx, s.port)
}

// awaitResponse waits until try succeeds. Some contestants serve their port before they are ready.
func (r *instance) awaitResponse(ctx context.Context, try attempt) error {
	const limit = 45 * time.Second // long, for huge results and contestants that start at the same time
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no response in %s", limit))
	defer cancel()
	for {
		client, err := r.open(ctx)
		if err == nil {
			err = try(ctx, client)
			client.Close(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(err, ctx.Err()) {
				err = context.Cause(ctx)
			}
			if r.process != nil {
				err = r.process.Explain(err)
			}
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *instance) stop() {
	if r.process != nil {
		r.process.Stop()
	}
	if r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
}

// cpu returns the processor time of a contestant, or 0 without a process.
func (r *instance) cpu() time.Duration {
	if r.process == nil {
		return 0
	}
	return r.process.CPU()
}

// output returns the standard output and error of a contestant.
func (r *instance) output() string {
	if r.process == nil {
		return ""
	}
	return r.process.Output()
}

func (r *instance) memory() (m procfs.Memory) {
	if r.process != nil {
		m = r.process.Memory()
	}
	return m
}

// A group has the contestants of a case that could be started.
type group struct {
	upstream *upstream.Server
	started  []*instance      // in the order of the contestants
	absent   map[string]error // why the others could not, by id
}

// startGroup starts contestants, each with one server that has this path.
func (b *bench) startGroup(
	ctx context.Context, contestants []contestant, path string, s setup, try func(*contestant) attempt,
) (*group, error) {
	up, err := upstream.Start(ctx)
	if err != nil {
		return nil, err
	}
	f := &group{upstream: up, absent: map[string]error{}}
	started := make([]*instance, len(contestants))
	failures := make([]error, len(contestants))
	_, _ = load.Each(len(contestants), 4, func(i int) error {
		c := &contestants[i]
		backend, err := benchServer(up, path, c.stdio)
		if err == nil {
			started[i], err = c.start(ctx, &b.programs, []server{backend}, s, try(c))
		}
		failures[i] = err
		return nil
	})
	for i, err := range failures {
		if err != nil {
			f.absent[contestants[i].id()] = err
		} else {
			f.started = append(f.started, started[i])
		}
	}
	if err := ctx.Err(); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// stop ends all contestants, then their server.
func (f *group) stop() {
	load.HTTP.CloseIdleConnections()
	var wg sync.WaitGroup
	for _, r := range f.started {
		wg.Go(r.stop)
	}
	wg.Wait()
	f.upstream.Stop()
}

// selfSigned returns a certificate for 127.0.0.1 and its key, as PEM.
func selfSigned() (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "bench-gateway"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return block("CERTIFICATE", signed), block("PRIVATE KEY", secret), nil
}
