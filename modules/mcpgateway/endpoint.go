package mcpgateway

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// Servers of the protocol's first revision take messages at an address that they
// name in the first event of a GET stream. The client is given one of ours in its
// place. It carries the server's, sealed, so that there is nothing to remember and
// nothing else of the server can be reached, nor by anybody else.

// endpointParam is the parameter of an address of ours.
const endpointParam = "endpoint"

// endpointKey seals addresses as long as the process lives.
var endpointKey = func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // which never fails
	return key
}()

// seal returns the token that stands for a request URI of a server.
func (s *Server) seal(uri, client string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(uri)) + "." + base64.RawURLEncoding.EncodeToString(s.sealOf(uri, client))
}

func (s *Server) sealOf(uri, client string) []byte {
	mac := hmac.New(sha256.New, endpointKey)
	mac.Write([]byte(s.Name + "\x00" + client + "\x00" + uri))
	return mac.Sum(nil)
}

// unseal returns the address that a token stands for.
func (s *Server) unseal(token, client string) (*url.URL, *jsonrpc.Failure) {
	failure := jsonrpc.InvalidRequest("the endpoint is not one of this MCP server")
	encoded, seal, _ := strings.Cut(token, ".")
	uri, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil, failure
	}
	sum, err := base64.RawURLEncoding.DecodeString(seal)
	if err != nil || !hmac.Equal(sum, s.sealOf(string(uri), client)) {
		return nil, failure
	}
	u, err := url.ParseRequestURI(string(uri))
	if err != nil {
		return nil, failure
	}
	return u, nil
}

// rewriteEndpoint returns an event with the address in it replaced by one below
// path, if it is the event that names one.
func (s *Server) rewriteEndpoint(event []byte, path, client string) []byte {
	if !isEndpoint(event) {
		return event
	}
	var events sse.Scanner
	var address []byte
	events.Each(event, func(kind sse.Kind, part []byte) {
		if kind == sse.Data {
			address = append(address, part...)
		}
	})
	ref, err := url.Parse(strings.TrimSpace(string(address)))
	if err != nil || ref.Opaque != "" {
		return event
	}
	ours := path + "?" + endpointParam + "=" + s.seal(s.target.ResolveReference(ref).RequestURI(), client)

	rewritten := make([]byte, 0, len(event)+len(ours))
	events = sse.Scanner{}
	events.Each(event, func(kind sse.Kind, part []byte) {
		if kind == sse.Data {
			part, ours = []byte(ours), ""
		}
		rewritten = append(rewritten, part...)
	})
	return rewritten
}

func isEndpoint(event []byte) bool {
	for line := range bytes.Lines(event) {
		if value, ok := bytes.CutPrefix(line, []byte("event:")); ok && string(bytes.TrimSpace(value)) == "endpoint" {
			return true
		}
	}
	return false
}
