//go:build linux

package replicas

import (
	"net"
	"sync"
	"testing"
	"time"
)

// A relay is a connection to Redis that can delay or hold data.
type relay struct {
	addr  string
	to    string        // address of Redis
	delay time.Duration // delay of each chunk, in both directions

	mu      sync.Mutex
	passing chan struct{}         // closed unless data is held
	conns   map[net.Conn]struct{} // both ends of all connections
	running sync.WaitGroup
}

// newRelay starts a relay that ends with the test.
func newRelay(t *testing.T, to string, delay time.Duration) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: listener.Addr().String(), to: to, delay: delay, passing: make(chan struct{}),
		conns: map[net.Conn]struct{}{}}
	r.resume()
	r.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.serve(conn)
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.cut()
		r.running.Wait()
	})
	return r
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		client.Close()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[client], r.conns[server] = struct{}{}, struct{}{}
	r.running.Go(func() { r.pass(client, server) })
	r.running.Go(func() { r.pass(server, client) })
}

// pass copies data from one end to the other until one of them is closed.
func (r *relay) pass(src, dst net.Conn) {
	defer func() {
		src.Close()
		dst.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, src)
		delete(r.conns, dst)
	}()
	piece := make([]byte, 64<<10)
	for {
		n, err := src.Read(piece)
		if err != nil {
			return
		}
		time.Sleep(r.delay)
		r.mu.Lock()
		passing := r.passing
		r.mu.Unlock()
		<-passing
		if _, err := dst.Write(piece[:n]); err != nil {
			return
		}
	}
}

// hold holds data back. Connections stay open.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passing = make(chan struct{})
}

// resume lets data pass again, including what was held.
func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.passing)
}

// cut closes all connections and discards held data. New connections are possible.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end := range r.conns {
		end.Close()
	}
	select {
	case <-r.passing:
	default:
		close(r.passing)
	}
}
