package stdio

import (
	"bytes"
	"slices"

	"go.uber.org/zap"
)

// offlinePhrases occur, in lower case, in the errors of npm, uv, pip and other programs that cannot
// reach a server or do not trust its certificate.
var offlinePhrases = [][]byte{
	[]byte("unable_to_get_issuer_cert"), []byte("unable_to_verify_leaf_signature"), []byte("self_signed_cert"),
	[]byte("self-signed certificate"), []byte("self signed certificate"), []byte("certificate_verify_failed"),
	[]byte("certificate verify failed"), []byte("unknownissuer"), []byte("unknown issuer"), []byte("unknown authority"),
	[]byte("enotfound"), []byte("eai_again"), []byte("econnrefused"), []byte("etimedout"), []byte("enetunreach"),
	[]byte("could not resolve host"), []byte("name resolution"), []byte("dns error"), []byte("network is unreachable"),
}

// looksOffline reports whether a line says that a program cannot reach the network.
func looksOffline(line []byte) bool {
	line = bytes.ToLower(line)
	return slices.ContainsFunc(offlinePhrases, func(words []byte) bool { return bytes.Contains(line, words) })
}

// logWithheld names the variables that a child may need to reach the network, if it ended
// before it was ready.
func (c *child) logWithheld() {
	withheld := c.server.pool.config.Withheld
	if len(withheld) == 0 {
		return
	}
	select {
	case <-c.announced:
	default:
		c.log().Warn("MCP server cannot reach the network; it may need environment variables of Caddy: "+
			"pass them with env inherit", zap.Strings("inherit", withheld))
	}
}
