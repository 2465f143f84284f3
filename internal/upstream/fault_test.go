package upstream

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestCauses(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	foreign := httptest.NewTLSServer(http.NotFoundHandler())
	defer foreign.Close()
	foreign.Config.ErrorLog = log.New(io.Discard, "", 0)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(address string) error {
		_, err := client.Get(address)
		var hidden *url.Error
		if !errors.As(err, &hidden) {
			t.Fatalf("%s: %v", address, err)
		}
		return hiddenError{hidden.Err}
	}
	for _, tt := range []struct {
		name string
		err  error
		want jsonrpc.Cause
	}{
		{"a closed port", get(gone.URL), jsonrpc.CauseRefused},
		{"a name that does not exist", get("http://no-such-host.invalid"), jsonrpc.CauseNoHost},
		{"TLS to a plain port", tls.RecordHeaderError{Msg: "tls: first record does not look like a TLS handshake"},
			jsonrpc.CauseTLS},
		{"a certificate of a private authority", get(foreign.URL), jsonrpc.CauseTLS},
		{"a route that does not exist", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("network is unreachable")},
			jsonrpc.CauseNoRoute},
		{"a connection that was closed", io.ErrUnexpectedEOF, jsonrpc.CauseLost},
		{"an aborted response", errAborted, jsonrpc.CauseLost},
		{"a known cause", &StatusError{502, startError{}}, jsonrpc.CauseNotStarted},
		{"anything else", errors.New("?"), jsonrpc.CauseNoRoute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := causeOf(tt.err); got != tt.want {
				t.Errorf("%v is %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}

type startError struct{}

func (startError) Error() string { return "exec: no" }

func (startError) Cause() jsonrpc.Cause { return jsonrpc.CauseNotStarted }

// A child that runs but does not respond to the handshake may not be an MCP server.
func TestFaultOfASilentChild(t *testing.T) {
	failure := jsonrpc.Timeout("a")
	failure.Cause = jsonrpc.CauseStarting
	const want = "not initialized within 2m0s: the process runs, but has not answered; " +
		"check that it is an MCP server on stdio"
	if got := (&Server{Name: "a", ChildrenOnly: true}).Fault(failure, "initialize", 2*time.Minute).Reason; got != want {
		t.Errorf("got %q", got)
	}
}

// A hiddenError hides its cause, like reverse_proxy's DialError.
type hiddenError struct{ error }
