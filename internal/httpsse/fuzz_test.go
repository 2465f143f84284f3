package httpsse

import (
	"net/http"
	"net/url"
	"slices"
	"testing"
)

// FuzzStream checks that a stream gives the same messages in pieces of any size, and that they
// reach their inboxes.
func FuzzStream(f *testing.F) {
	for _, seed := range []string{
		"event: endpoint\ndata: /message\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n",
		"\ufeffevent: endpoint\r\ndata: http://elsewhere.test/\r\n\r\n",
		"event: endpoint\rdata: ?a\r\rdata: {\ndata: \"id\":1,\"method\":\"x\"}\n\n: comment\n\n",
		"event: endpoint\ndata: a\n\nevent: endpoint\ndata: b\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n",
	} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		read := func(size int) (endpoint string, messages []string, err error) {
			p := NewPool()
			defer p.Close()
			s := newSession(p, Upstream{Name: "old", Target: &url.URL{Path: "/sse"}})
			for range maxSending {
				s.sending <- struct{}{} // sends nothing in the background
			}
			s.opening = &http.Request{Host: "gateway.test"}
			w := &stream{session: s, header: http.Header{"Content-Type": {"text/event-stream"}}}
			for part := range slices.Chunk(data, size) {
				_, _ = w.Write(part)
			}
			if s.endpoint != nil {
				endpoint = s.endpoint.RequestURI()
			}
			for l, ok, _ := s.mail.Take(); ok; l, ok, _ = s.mail.Take() {
				messages = append(messages, string(l.message))
			}
			return endpoint, messages, w.err
		}
		endpoint, messages, err := read(len(data) + 1)
		inPieces, messagesInPieces, errInPieces := read(int(size) + 1)
		if endpoint != inPieces || (err == nil) != (errInPieces == nil) || !slices.Equal(messages, messagesInPieces) {
			t.Errorf("whole: %q %v %q, in pieces: %q %v %q", endpoint, err, messages, inPieces, errInPieces, messagesInPieces)
		}
	})
}
