package stdio

import (
	"bytes"
	"slices"

	"go.uber.org/zap"
)

// offlineWords are what npm, uv, pip and other programs write, in lower case, if they cannot reach a server or do not
// trust its certificate.
var offlineWords = [][]byte{
	[]byte("unable_to_get_issuer_cert"), []byte("unable_to_verify_leaf_signature"), []byte("self_signed_cert"),
	[]byte("self-signed certificate"), []byte("self signed certificate"), []byte("certificate_verify_failed"),
	[]byte("certificate verify failed"), []byte("unknownissuer"), []byte("unknown issuer"), []byte("unknown authority"),
	[]byte("enotfound"), []byte("eai_again"), []byte("econnrefused"), []byte("etimedout"), []byte("enetunreach"),
	[]byte("could not resolve host"), []byte("name resolution"), []byte("dns error"), []byte("network is unreachable"),
}

// saysOffline reports whether a line is one of a program that cannot reach the network.
func saysOffline(line []byte) bool {
	line = bytes.ToLower(line)
	return slices.ContainsFunc(offlineWords, func(words []byte) bool { return bytes.Contains(line, words) })
}

// logWithheld names the variables that a child may need to reach the network, if it has ended before it was up.
func (c *child) logWithheld() {
	withheld := c.server.pool.config.Withheld
	if len(withheld) == 0 {
		return
	}
	select {
	case <-c.announced:
	default:
		c.log().Warn("MCP server cannot reach the network; it may need variables that Caddy has: pass them on with env inherit",
			zap.Strings("inherit", withheld))
	}
}
