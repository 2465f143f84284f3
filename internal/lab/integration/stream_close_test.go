package integration

import (
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A closeWatch records which responses announce that their connection will be closed.
type closeWatch struct {
	http.RoundTripper
	mu              sync.Mutex
	streams, others []bool
}

func (w *closeWatch) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if res.Header.Get("Content-Type") == "text/event-stream" {
		w.streams = append(w.streams, res.Close)
	} else {
		w.others = append(w.others, res.Close)
	}
	return res, nil
}

// The connection of a stream that a client listens to is closed with the stream. After a reload, it
// would otherwise be closed while the client reuses it. HTTP/2 connections have other streams, so
// they stay open.
func TestStreamsThatCloseTheirConnection(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	load(t, h2cOptions+site(address, gateway("separator __", child("a", "--modern"))))
	for _, protocol := range []struct {
		name   string
		client *http.Client
		closes bool
	}{{"HTTP/1.1", &http.Client{Transport: http.DefaultTransport}, true}, {"HTTP/2", h2cClient(t), false}} {
		for _, era := range []struct {
			name   string
			modern bool
		}{{"legacy", false}, {"modern", true}} {
			for _, path := range []string{"/mcp", "/mcp/a"} {
				t.Run(protocol.name+" "+era.name+" "+path, func(t *testing.T) {
					seen := &closeWatch{RoundTripper: protocol.client.Transport}
					c := newTestClientWith(t, &http.Client{Transport: seen}, "http://"+address+path, era.modern, fullCapabilities)
					c.listenForChanges(t)
					await.Until(t, "the stream", func() bool {
						seen.mu.Lock()
						defer seen.mu.Unlock()
						return len(seen.streams) > 0
					})
					c.ask(t, "tools/list", "", "Accept: application/json, text/plain")
					seen.mu.Lock()
					defer seen.mu.Unlock()
					if seen.streams[0] != protocol.closes || slices.Contains(seen.others, true) {
						t.Errorf("closed after streams: %v, after other responses: %v", seen.streams, seen.others)
					}
				})
			}
		}
	}
}
