package mcpgateway

import (
	"bytes"
	"errors"
	"net/http"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/screen"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// Some of what servers say is looked at before it reaches anybody else: lists, which the
// client may see a part of only; all of it, if something is to be redacted or to be
// answered in the place of the client. It is held message by message. Everything else
// streams.

// maxScreened is how large a message may be that is looked at.
const maxScreened = 64 << 20

// screened returns w as what is looked at is written to, or w itself.
func (x *exchange) screened(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *screen.Writer) {
	lists := x.listens(r)
	redacts := x.caller.redactor() != nil
	answers := len(x.server.Answers) > 0
	asks := answers && r.Header.Get(mcp.VersionHeader) == mcp.Stateless // by results
	if !lists && !redacts && !answers {
		return w, nil
	}
	r.Header.Del("Accept-Encoding")
	s := screen.NewWriter(w, maxScreened, func(message []byte) ([]byte, error) { return x.screen(r, message, lists) })
	s.EventsOnly = !lists && !redacts && !asks
	return s, s
}

// listens reports whether the answer may be one that a client is not shown all of, or
// not as it is.
func (x *exchange) listens(r *http.Request) bool {
	if r.Method == http.MethodGet { // in which answers are resumed
		return x.door == mcpDoor && (x.handler.PinTools || x.caller.policy().Restricts(x.server.Name))
	}
	switch x.methodName() {
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list", "initialize", "server/discover":
		return true
	}
	return false
}

// screen returns a message of the server as it goes on, nil if it does not.
func (x *exchange) screen(r *http.Request, message []byte, lists bool) ([]byte, error) {
	if len(x.server.Answers) > 0 {
		if x.answered(r, message) {
			return nil, nil
		}
		message = x.resolved(r, message)
	}
	if lists {
		var err error
		if message, err = x.visible(toolpin.Clean(message)); err != nil {
			x.verdict = jsonrpc.InvalidResponse(x.server.Name)
			return nil, err
		}
		x.handler.savePins()
	}
	redacted, n := x.caller.redactor().Message(message)
	if n > 0 {
		redactions.WithLabelValues(x.caller.label).Add(float64(n))
	}
	return redacted, nil
}

// visible returns a list as the client may see it. What cannot be read as a message is
// passed on only if there is nothing to hide, or if nobody else can read a list in it.
func (x *exchange) visible(message []byte) ([]byte, error) {
	h, server := x.handler, x.server.Name
	policy := x.caller.policy()
	filtered, err := mcp.FilterLists(message, func(item mcp.ListItem) bool {
		if item.Kind == mcp.Tool && !x.pinned(item) && h.PinTools {
			return false
		}
		return sees(policy, server, item)
	})
	text := bytes.TrimSpace(message)
	switch hides := h.PinTools || policy.Restricts(server); {
	case hides && bytes.HasPrefix(text, []byte("[")):
		return nil, errBatch
	case err == nil:
		return filtered, nil
	case hides && bytes.HasPrefix(text, []byte("{")):
		return nil, err
	}
	return message, nil
}

var errBatch = errors.New("a batch of messages cannot be looked at")

// sees reports whether an item of a list may be seen.
func sees(policy *acl.Policy, server string, item mcp.ListItem) bool {
	switch {
	case item.Template:
		return policy.Template(server, item.Name)
	case item.Kind == mcp.Tool:
		return policy.Tool(server, item.Name)
	case item.Kind == mcp.Prompt:
		return policy.Prompt(server, item.Name)
	default:
		return policy.Resource(server, item.Name)
	}
}

// pinned reports whether a tool is what it was when it was first seen. That it is not
// any more may be an attack: what a client has agreed to was another tool.
func (x *exchange) pinned(item mcp.ListItem) bool {
	changed, news := x.handler.pins.See(x.server.source, item.Name, item.Raw)
	if news {
		toolChanges.WithLabelValues(x.server.Name).Inc()
		x.handler.logger.Warn("definition of tool has changed", zap.String("mcp_server", x.server.Name),
			zap.String("mcp_tool", mcp.Shortened(item.Name)), zap.Bool("withheld", x.handler.PinTools))
	}
	return !changed
}

// unscreened says what is wrong with a message that cannot be looked at.
func (x *exchange) unscreened(err error) {
	switch {
	case x.verdict != nil:
	case errors.Is(err, screen.ErrTooLarge):
		x.verdict = jsonrpc.ResponseTooLarge(x.server.Name)
	case errors.Is(err, screen.ErrEncoded):
		x.verdict = jsonrpc.InvalidResponse(x.server.Name)
	}
}
