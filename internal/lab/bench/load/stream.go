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

// ErrNoStream is returned by Listen if the server has no GET stream.
var ErrNoStream = errors.New("sessions have no stream")

// Listen opens the GET stream of a session, identified by its header. It returns a bare
// connection: ten thousand clients of net/http would take more memory than the contestants.
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
	err = r.Write(conn) // same User-Agent as other requests: the gateway may identify clients by headers
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
