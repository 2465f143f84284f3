//go:build linux

package replicas

import (
	"net"
	"sync"
	"testing"
	"time"
)

// A relay is a way to Redis on which bytes can be late, or get stuck.
type relay struct {
	addr  string
	to    string
	delay time.Duration // of each piece, either way

	mu      sync.Mutex
	passing chan struct{}         // closed while bytes pass
	ends    map[net.Conn]struct{} // of all connections
	running sync.WaitGroup
}

// newRelay starts a relay that is ended with the test.
func newRelay(t *testing.T, to string, delay time.Duration) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: listener.Addr().String(), to: to, delay: delay, passing: make(chan struct{}), ends: map[net.Conn]struct{}{}}
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

func (r *relay) serve(from net.Conn) {
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		from.Close()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends[from], r.ends[to] = struct{}{}, struct{}{}
	r.running.Go(func() { r.pass(from, to) })
	r.running.Go(func() { r.pass(to, from) })
}

// pass passes what comes from one end to the other, until one of them is closed.
func (r *relay) pass(from, to net.Conn) {
	defer func() {
		from.Close()
		to.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.ends, from)
		delete(r.ends, to)
	}()
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if err != nil {
			return
		}
		time.Sleep(r.delay)
		r.mu.Lock()
		passing := r.passing
		r.mu.Unlock()
		<-passing
		if _, err := to.Write(piece[:n]); err != nil {
			return
		}
	}
}

// hold has bytes get stuck. Connections stay open.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passing = make(chan struct{})
}

// resume has bytes go on, also those that got stuck.
func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.passing)
}

// cut closes all connections, with what got stuck in them. Others can be made.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end := range r.ends {
		end.Close()
	}
	select {
	case <-r.passing:
	default:
		close(r.passing)
	}
}
