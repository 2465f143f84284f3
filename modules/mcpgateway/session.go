package mcpgateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Where a client talks to one server, the sessions are the server's. To it all clients
// may be one: the gateway. So the ids that clients whom somebody knows are given are
// good for them only.

// bindSession returns the id of a session as one that is good for the client only.
func (x *exchange) bindSession(id string) string {
	mac := hmac.New(sha256.New, x.handler.sessionKey)
	_, _ = mac.Write([]byte("session of one server\x00" + x.server.Name + "\x00" + x.caller.identity + "\x00" + id))
	return id + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// claimSession has a request name the session as the server knows it, if the session is
// the client's.
func (x *exchange) claimSession(header http.Header) *jsonrpc.Failure {
	values := header.Values(mcp.SessionHeader)
	if !x.bindsSessions() || len(values) == 0 {
		return nil
	}
	if len(values) > 1 {
		return jsonrpc.UnknownSession() // servers could take either
	}
	bound := values[0]
	id := bound[:max(strings.LastIndexByte(bound, '.'), 0)]
	if !hmac.Equal([]byte(bound), []byte(x.bindSession(id))) {
		return jsonrpc.UnknownSession()
	}
	header.Set(mcp.SessionHeader, id)
	return nil
}

// bindsSessions reports whether sessions are good for the client only.
func (x *exchange) bindsSessions() bool {
	return (x.door == mcpDoor || x.door == rpcDoor) && x.caller.identity != ""
}
