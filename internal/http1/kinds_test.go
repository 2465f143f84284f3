package http1

import (
	"io"
	"log"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // net/http logs unsolicited responses
	if os.Getenv("SHOW_LOG") != "" {
		log.SetOutput(os.Stderr)
	}
	goleak.VerifyTestMain(m)
}

// A roundTripper is a transport with connections.
type roundTripper interface {
	http.RoundTripper
	CloseIdleConnections()
}

// kinds are the two transports that must behave the same.
var kinds = []struct {
	name string
	of   func(*http.Transport) roundTripper
}{
	{"standard", func(standard *http.Transport) roundTripper { return standard }},
	{"http1", func(standard *http.Transport) roundTripper { return New(standard) }},
}
