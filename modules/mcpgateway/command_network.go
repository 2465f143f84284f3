package mcpgateway

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
)

// Some commands run Caddy for themselves alone. So they have it listen on a network that
// does not leave the process: its connections are pipes.

const (
	stdioNetwork   = "mcp-stdio"
	stdioHost      = "localhost:80" // a name by which every gateway can be called
	stdioAdminHost = "localhost:2019"
)

// onStdio is set if this process is the command mcp-stdio.
var onStdio bool

// stdioClient is who comes in by that network.
var stdioClient = gateway.OperatorIdentity

// stdioConns hands connections over from those who dial to those who listen.
var stdioConns = map[string]chan net.Conn{
	stdioHost:      make(chan net.Conn),
	stdioAdminHost: make(chan net.Conn),
}

func init() {
	caddy.RegisterNetwork(stdioNetwork, func(_ context.Context, network, host, port string, _ uint, _ net.ListenConfig) (any, error) {
		address := net.JoinHostPort(host, port)
		conns := stdioConns[address]
		if conns == nil && host != "localhost" {
			return nil, fmt.Errorf("%s is not an address of the network %s", address, network)
		}
		l := &stdioListener{conns: conns, closed: make(chan struct{})}
		l.close = sync.OnceFunc(func() { close(l.closed) })
		return l, nil
	})
}

// freeLoopbackAddress returns an address of this machine that is free.
func freeLoopbackAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// A stdioListener listens at one of the addresses. Several can, as they do while one
// configuration takes the place of another.
type stdioListener struct {
	conns  <-chan net.Conn
	closed chan struct{}
	close  func()
}

func (l *stdioListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *stdioListener) Close() error {
	l.close()
	return nil
}

func (l *stdioListener) Addr() net.Addr { return stdioAddr{} }

// dialStdio connects with whoever listens at an address.
func dialStdio(ctx context.Context, _, address string) (net.Conn, error) {
	conns := stdioConns[address]
	if conns == nil {
		return nil, fmt.Errorf("%s is not an address of the network %s", address, stdioNetwork)
	}
	client, server := net.Pipe()
	select {
	case conns <- stdioConn{server}:
		return client, nil
	case <-ctx.Done():
		client.Close()
		server.Close()
		return nil, ctx.Err()
	}
}

// A stdioConn is a connection that says where it comes from in the way that Caddy
// expects it.
type stdioConn struct{ net.Conn }

func (stdioConn) LocalAddr() net.Addr  { return stdioAddr{} }
func (stdioConn) RemoteAddr() net.Addr { return stdioAddr{} }

// stdioAddr is the machine itself.
type stdioAddr struct{}

func (stdioAddr) Network() string { return stdioNetwork }
func (stdioAddr) String() string  { return "127.0.0.1:0" }
