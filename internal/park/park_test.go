package park

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A lot is a server that parks all its responses.
type lot struct {
	*httptest.Server
	parked chan *Response
	left   chan *Response
}

func newLot(t *testing.T, start func(*httptest.Server)) *lot {
	l := &lot{parked: make(chan *Response, 100), left: make(chan *Response, 100)}
	l.Server = httptest.NewUnstartedServer(http.HandlerFunc(l.serve))
	start(l.Server)
	t.Cleanup(l.Close)
	return l
}

func (l *lot) serve(w http.ResponseWriter, r *http.Request) {
	if !Prepare(w, r) {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "first ")
	_ = http.NewResponseController(w).Flush()
	var parked *Response
	known := make(chan struct{})
	parked = Take(w, func() {
		go func() {
			<-known
			l.left <- parked
		}()
	})
	close(known)
	l.parked <- parked
}

// send writes to a parked response.
func send(r *Response, text string) error {
	_ = r.SetWriteDeadline(time.Now().Add(await.Patience))
	_, _ = io.WriteString(r, text)
	return r.FlushError()
}

func get(t *testing.T, l *lot) *http.Response {
	t.Helper()
	res, err := l.Client().Get(l.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// dial sends a request and returns its connection without reading the response.
func dial(t *testing.T, l *lot, proto string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", l.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET / %s\r\nHost: a\r\n\r\n", proto)
	return conn
}

func TestResponseOutlivesItsHandler(t *testing.T) {
	for name, start := range map[string]func(*httptest.Server){
		"plain": (*httptest.Server).Start,
		"TLS":   (*httptest.Server).StartTLS,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLot(t, start)
			res := get(t, l)
			parked := <-l.parked
			if err := send(parked, "second "); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(parked, "thi")
			if err := send(parked, "rd"); err != nil {
				t.Error(err)
			}
			parked.Close()
			body, err := io.ReadAll(res.Body)
			if string(body) != "first second third" || err != nil {
				t.Errorf("got %q: %v", body, err)
			}
			if !res.Close || len(l.left) > 0 {
				t.Errorf("connection can be reused: %t, client has disconnected: %t", !res.Close, len(l.left) > 0)
			}
		})
	}
}

func TestDisconnectedClientsAreNoticed(t *testing.T) {
	for name, leave := range map[string]func(net.Conn){
		"closed connection":    func(conn net.Conn) { conn.Close() },
		"closed for writing":   func(conn net.Conn) { _ = conn.(*net.TCPConn).CloseWrite() },
		"reset connection":     func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0); conn.Close() },
		"another request":      func(conn net.Conn) { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n") },
		"client does not read": nil,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLot(t, (*httptest.Server).Start)
			other := get(t, l)
			unaffected := <-l.parked
			conn := dial(t, l, "HTTP/1.1")
			parked := <-l.parked
			if leave != nil {
				leave(conn)
			} else {
				_ = parked.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
				_, _ = parked.Write(make([]byte, 64<<20))
				if err := parked.FlushError(); err == nil {
					t.Error("the write succeeded")
				}
			}
			if gone := <-l.left; gone != parked {
				t.Error("another response ended")
			}
			parked.Close()
			if err := send(unaffected, "second"); err != nil {
				t.Error(err)
			}
			unaffected.Close()
			if body, err := io.ReadAll(other.Body); string(body) != "first second" || err != nil {
				t.Errorf("other response: got %q: %v", body, err)
			}
		})
	}
}

// A request that follows the first one at once is in the buffers of net/http.
func TestPipelinedRequestEndsTheResponse(t *testing.T) {
	l := newLot(t, (*httptest.Server).Start)
	conn, err := net.Dial("tcp", l.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, strings.Repeat("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2))
	parked := <-l.parked
	<-l.left
	parked.Close()
	if answers, err := io.ReadAll(conn); strings.Count(string(answers), "HTTP/1.1 200") != 1 {
		t.Errorf("got %q: %v", answers, err)
	}
}

// A read deadline that a handler set does not end the response.
func TestReadDeadlinesOfHandlersAreIgnored(t *testing.T) {
	l := newLot(t, (*httptest.Server).Start)
	res := get(t, l)
	parked := <-l.parked
	_ = parked.conn.SetReadDeadline(time.Now())
	if err := send(parked, "second"); err != nil {
		t.Error(err)
	}
	res.Body.Close()
	<-l.left
	parked.Close()
}

// A client that does not read does not delay the end of the response.
func TestEndDoesNotWaitForSlowClients(t *testing.T) {
	l := newLot(t, (*httptest.Server).Start)
	dial(t, l, "HTTP/1.1")
	parked := <-l.parked
	var writing sync.WaitGroup
	writing.Go(func() { _ = send(parked, strings.Repeat("x", 64<<20)) })
	parked.End()
	writing.Wait()
	parked.Close()
	if len(l.left) > 0 {
		t.Error("the response was reported as left after its end")
	}
}

func TestManyResponses(t *testing.T) {
	l := newLot(t, (*httptest.Server).Start)
	var clients sync.WaitGroup
	for range 100 {
		res := get(t, l)
		clients.Go(func() {
			if body, err := io.ReadAll(res.Body); string(body) != "first second" || err != nil {
				t.Errorf("got %q: %v", body, err)
			}
		})
	}
	for range 100 {
		parked := <-l.parked
		if err := send(parked, "second"); err != nil {
			t.Error(err)
		}
		parked.Close()
	}
	clients.Wait()
}

func TestResponsesThatCannotBeParked(t *testing.T) {
	t.Run("HTTP/1.0", func(t *testing.T) {
		l := newLot(t, (*httptest.Server).Start)
		line, _ := bufio.NewReader(dial(t, l, "HTTP/1.0")).ReadString('\n')
		if !strings.Contains(line, "501") {
			t.Errorf("got %q", line)
		}
	})
	for name, start := range map[string]func(*httptest.Server){
		"HTTP/2": func(s *httptest.Server) {
			s.EnableHTTP2 = true
			s.TLS = &tls.Config{}
			s.StartTLS()
		},
		"with a write timeout": func(s *httptest.Server) {
			s.Config.WriteTimeout = time.Minute
			s.Start()
		},
		"behind a wrapping writer": func(s *httptest.Server) {
			next := s.Config.Handler
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(&wrapper{w}, r) })
			s.Start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			res := get(t, newLot(t, start))
			if res.StatusCode != http.StatusNotImplemented || res.Close {
				t.Errorf("got %s, closes the connection: %t", res.Status, res.Close)
			}
		})
	}
	for name, header := range map[string]http.Header{
		"of a known length":          {"Content-Length": {"3"}},
		"in another transfer coding": {"Transfer-Encoding": {"identity"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for key := range header {
					w.Header()[key] = header[key]
				}
				_ = http.NewResponseController(w).Flush()
				if Take(w, func() {}) != nil {
					t.Error("the response was parked")
				}
				_, _ = io.WriteString(w, "abc")
			}))
			defer s.Close()
			res, err := s.Client().Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if body, err := io.ReadAll(res.Body); string(body) != "abc" || err != nil {
				t.Errorf("got %q: %v", body, err)
			}
		})
	}
}

type wrapper struct{ http.ResponseWriter }

func (w *wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }
