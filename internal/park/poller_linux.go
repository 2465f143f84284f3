package park

import (
	"math"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller watches the connections of all parked responses.
var poller epoll

// An epoll watches connections with one goroutine, which runs while there are any.
type epoll struct {
	mu        sync.Mutex
	fd        int
	file      *os.File // of fd; nil while there is nothing to watch
	lastKey   int32
	responses map[int32]*Response
}

// add watches the connection of a response. It reports whether it can.
func (p *epoll) add(r *Response) bool {
	conn := rawConn(r.conn)
	if conn == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil && !p.start() {
		return false
	}
	key := p.newKey()
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: key}
	var failure error
	err := conn.Control(func(fd uintptr) { failure = unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, int(fd), &event) })
	if err == nil && failure == nil {
		r.key = key
		p.responses[key] = r
	}
	p.stopIfIdle()
	return r.key != 0
}

// newKey returns an unused key.
func (p *epoll) newKey() int32 {
	for {
		p.lastKey = p.lastKey%math.MaxInt32 + 1
		if p.responses[p.lastKey] == nil {
			return p.lastKey
		}
	}
}

// remove stops watching the connection of a response, before it is closed.
func (p *epoll) remove(r *Response) {
	if r.key == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = rawConn(r.conn).Control(func(fd uintptr) { _ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, int(fd), nil) })
	delete(p.responses, r.key)
	p.stopIfIdle()
}

// start starts the goroutine. The caller of start and stopIfIdle holds the lock.
func (p *epoll) start() bool {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	_ = unix.SetNonblock(fd, true) // Go then waits for it as for a connection, without a thread
	file := os.NewFile(uintptr(fd), "epoll")
	ready, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return false
	}
	p.fd, p.file, p.responses = fd, file, map[int32]*Response{}
	go p.run(ready)
	return true
}

// stopIfIdle ends the goroutine if there is nothing to watch.
func (p *epoll) stopIfIdle() {
	if len(p.responses) == 0 {
		_ = p.file.Close()
		p.file, p.responses = nil, nil
	}
}

// run waits for clients that disconnect, until the file is closed.
func (p *epoll) run(ready syscall.RawConn) {
	var events [64]unix.EpollEvent
	for {
		n := 0
		err := ready.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events[:], 0)
			return n > 0
		})
		if err != nil {
			return
		}
		for _, event := range events[:n] {
			p.mu.Lock()
			r := p.responses[event.Fd]
			p.mu.Unlock()
			if r != nil {
				r.clientLeft()
			}
		}
	}
}

// rawConn returns the socket of a connection, also below TLS; nil if it is unknown.
func rawConn(conn net.Conn) syscall.RawConn {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}
