package upstream

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// Servers of the protocol's first revision take messages at an address that they
// name in the first event of a GET stream. The client is given one of ours in its
// place. It carries the server's, sealed, so that there is nothing to remember and
// nothing else of the server can be reached, nor by anybody else.

// endpointParam is the parameter of an address of ours.
const endpointParam = "endpoint"

// openEndpoint returns the address that a token stands for.
func (b binding) openEndpoint(token string) (*url.URL, *jsonrpc.Failure) {
	failure := jsonrpc.InvalidRequest("the endpoint is not one of this MCP server")
	encoded, ok := b.claim(endpointOfServer, token)
	if !ok {
		return nil, failure
	}
	uri, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil, failure
	}
	u, err := url.ParseRequestURI(string(uri))
	if err != nil {
		return nil, failure
	}
	return u, nil
}

// sealedEndpoint returns the address below path that stands for one of the server. It reports
// whether it is one.
func (x *Exchange) sealedEndpoint(address string) (string, bool) {
	ref, err := url.Parse(strings.TrimSpace(address))
	if err != nil || ref.Opaque != "" {
		return "", false
	}
	uri := base64.RawURLEncoding.EncodeToString([]byte(x.Server.Target.ResolveReference(ref).RequestURI()))
	return x.Path + "?" + endpointParam + "=" + x.binding().bind(endpointOfServer, uri), true
}

// noteEndpoint notes where a server of the protocol's first revision wants to be told
// something: it says so in its stream. It reports whether this is it.
func (x *Exchange) noteEndpoint(address []byte) bool {
	ref, err := url.Parse(string(bytes.TrimSpace(address)))
	if err != nil || ref.Opaque != "" || !strings.HasPrefix(ref.Path, "/") {
		return false
	}
	if x.sent != nil {
		streamable.Direct(x.sent, x.Server.Target.ResolveReference(ref))
	}
	return true
}

// An endpointSealer replaces the address in each event of a stream that names one. All
// servers are one origin, so an address that passed as it is could be that of another
// server, and the client would talk to that.
type endpointSealer struct {
	events  sse.Scanner
	fields  sse.Fields // of the event
	held    []byte     // of the event, until it is known what it is
	out     []byte
	named   bool // the event names an endpoint
	passing bool // its beginning has been passed on
}

// longestEndpoint is how much of an event is held back. A longer one passes as it comes,
// and ends the stream if it then turns out to name an endpoint.
const longestEndpoint = 64 << 10

var errEndpoint = errors.New("the MCP server names an endpoint that is none")

// seal returns what of a stream can be passed on. It is good until the next call.
func (s *endpointSealer) seal(p []byte, replace func(address string) (string, bool)) (_ []byte, err error) {
	s.out = s.out[:0]
	s.events.Each(p, func(kind sse.Kind, part []byte) {
		if err != nil {
			return
		}
		if kind == sse.Dispatch {
			err = s.dispatch(replace)
			return
		}
		if kind == sse.Frame {
			s.read(part)
		}
		if s.held = append(s.held, part...); len(s.held) > longestEndpoint || s.passing {
			s.passing = true
			if s.named {
				err = errEndpoint
				return
			}
			s.pass(s.held)
			return
		}
		// A comment, by which servers keep connections open, belongs to no event. A line
		// end that stands alone is the rest of one.
		if ends := part[len(part)-1] == '\n' || part[len(part)-1] == '\r'; ends && (s.held[0] == ':' || len(s.held) == 1) {
			s.pass(s.held)
		}
	})
	return s.out, err
}

// rest returns what is left of a body that has ended, and may have been no stream.
func (s *endpointSealer) rest() []byte {
	if s.read([]byte{'\n'}); s.named {
		return nil
	}
	return s.held
}

// read takes the next bytes of the framing. Once an event has named an endpoint it is
// taken for one.
func (s *endpointSealer) read(frame []byte) {
	s.fields.Read(frame)
	s.named = s.named || isEndpoint(s.fields.Type)
}

// isEndpoint reports whether an event of this name names an endpoint. The name is not read
// as strictly as the standard does: there are clients of all kinds.
func isEndpoint(name string) bool { return strings.EqualFold(strings.TrimSpace(name), endpointParam) }

func (s *endpointSealer) dispatch(replace func(address string) (string, bool)) error {
	if !s.named {
		s.pass(s.held)
	} else {
		ours, ok := replace(dataOf(s.held))
		if !ok {
			return errEndpoint
		}
		s.pass([]byte("event: " + endpointParam + "\ndata: " + ours + "\n\n"))
	}
	s.fields.Reset()
	s.named, s.passing = false, false
	return nil
}

func (s *endpointSealer) pass(p []byte) {
	s.out = append(s.out, p...)
	s.held = s.held[:0]
}

// dataOf returns the data of an event.
func dataOf(event []byte) string {
	var events sse.Scanner
	var data []byte
	events.Each(event, func(kind sse.Kind, part []byte) {
		if kind == sse.Data {
			data = append(data, part...)
		}
	})
	return string(data)
}
