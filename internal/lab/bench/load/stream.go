package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// ErrNoStream says that a server does not let clients listen.
var ErrNoStream = errors.New("sessions have no stream")

// Listen opens the stream of a session, whose requests come with that header. The
// connection is bare: ten thousand clients of net/http would take more memory than what
// is measured.
func Listen(ctx context.Context, endpoint string, session http.Header) (net.Conn, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/event-stream")
	for _, name := range [...]string{mcp.VersionHeader, mcp.SessionHeader} {
		r.Header.Set(name, session.Get(name))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.URL.Host)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(Timeout))
	err = r.Write(conn) // with the User-Agent of other requests: a client is known by its headers
	status := make([]byte, len("HTTP/1.1 200"))
	if err == nil {
		_, err = io.ReadFull(conn, status)
	}
	switch code := string(status[len(status)-3:]); {
	case err != nil || code == "200":
	case code == "405":
		err = ErrNoStream
	default:
		err = fmt.Errorf("GET: %q", status)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
