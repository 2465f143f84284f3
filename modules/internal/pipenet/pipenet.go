// Package pipenet implements a network inside the process, whose connections are pipes. Commands
// that run Caddy in their own process let it listen there.
package pipenet

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/caddyserver/caddy/v2"
)

// Name is the name of the network, the prefix of listener addresses.
const Name = "mcp-stdio"

// Addresses that can be dialed.
const (
	Host      = "localhost:80" // every gateway accepts this host
	AdminHost = "localhost:2019"
)

// dialed passes connections from Dial to listeners, by address.
var dialed = map[string]chan net.Conn{
	Host:      make(chan net.Conn),
	AdminHost: make(chan net.Conn),
}

func init() {
	caddy.RegisterNetwork(Name, listen)
}

// listen returns a listener at an address.
func listen(_ context.Context, network, host, port string, _ uint, _ net.ListenConfig) (any, error) {
	address := net.JoinHostPort(host, port)
	conns := dialed[address]
	if conns == nil && host != "localhost" {
		return nil, fmt.Errorf("%s is not an address of the network %s", address, network)
	}
	l := &listener{conns: conns, closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l, nil
}

// A listener listens at one of the addresses. While one configuration replaces another, several
// listeners share an address.
type listener struct {
	conns  <-chan net.Conn
	closed chan struct{}
	close  func()
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.close()
	return nil
}

func (l *listener) Addr() net.Addr { return addr{} }

// Dial connects to the listener at an address.
func Dial(ctx context.Context, _, address string) (net.Conn, error) {
	conns := dialed[address]
	if conns == nil {
		return nil, fmt.Errorf("%s is not an address of the network %s", address, Name)
	}
	client, server := net.Pipe()
	select {
	case conns <- conn{server}:
		return client, nil
	case <-ctx.Done():
		client.Close()
		server.Close()
		return nil, ctx.Err()
	}
}

// A conn is a connection with addresses that Caddy can parse.
type conn struct{ net.Conn }

func (conn) LocalAddr() net.Addr  { return addr{} }
func (conn) RemoteAddr() net.Addr { return addr{} }

// addr is a loopback address.
type addr struct{}

func (addr) Network() string { return Name }
func (addr) String() string  { return "127.0.0.1:0" }
