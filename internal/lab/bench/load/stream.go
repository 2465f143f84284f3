package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// ErrNoStream says that a server does not let clients listen.
var ErrNoStream = errors.New("sessions have no stream")

// Listen opens the stream of a session, whose requests come with that header. The
// connection is bare: ten thousand clients of net/http would take more memory than what
// is measured.
func Listen(ctx context.Context, endpoint string, session http.Header) (net.Conn, error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(Timeout))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\nMcp-Protocol-Version: %s\r\nMcp-Session-Id: %s\r\n\r\n",
		at.Path, at.Host, session.Get(mcp.VersionHeader), session.Get(mcp.SessionHeader))
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
