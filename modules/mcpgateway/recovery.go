package mcpgateway

import (
	"encoding/json"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/aggregate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/recovery"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

// offerRecovery adds the tool and the resource by which clients read back what was
// masked, if any of the masks keeps it.
func (h *Handler) offerRecovery(config *aggregate.Config) {
	var masked []*Server
	shortest := 0
	for _, s := range h.Servers {
		if s.mask == nil || !s.masked {
			continue
		}
		if maxChars, ok := s.mask.Recovers(); ok {
			masked = append(masked, s)
			if shortest == 0 || maxChars < shortest {
				shortest = maxChars
			}
		}
	}
	if len(masked) == 0 {
		return
	}
	reader := func(r *http.Request) recovery.Reader {
		who := h.callerIn(r.Context())
		return recovery.Reader{MaxChars: shortest, Get: func(handle string) ([]byte, bool) {
			for _, s := range masked {
				body, target, ok := s.mask.Original(who.name, handle)
				if !ok {
					continue
				}
				if target.Server = s.Name; !who.allows(target) || h.withheld(target) {
					return nil, false // not any more
				}
				return who.redactor().Body(body), true
			}
			return nil, false
		}}
	}
	config.Tools = append(config.Tools, aggregate.Tool{
		Name:       recovery.ToolName,
		Descriptor: recovery.Tool,
		Call:       func(r *http.Request, arguments []byte) []byte { return reader(r).Call(arguments) },
	})
	config.Templates = func(string) [][]byte { return [][]byte{recovery.Template} }
	config.ReadOwn = func(r *http.Request, uri string) (result []byte, ours bool) {
		handle, ours := mcp.ParseObservationURI(uri)
		if !ours {
			return nil, false
		}
		text, ok := reader(r).Text(handle)
		if !ok {
			return nil, true
		}
		return contents(uri, "text/plain", text), true
	}
}

// about returns r as one of which the mask knows what it is about, if that keeps anything.
// Of an answer that is resumed, or of a task, nobody can tell.
func (x *exchange) about(r *http.Request) *http.Request {
	if _, keeps := x.server.mask.Recovers(); !keeps {
		return r
	}
	target, ok := mcp.TargetOf(x.server.Name, &x.message)
	if !ok || !x.message.IsRequest() {
		target = mcp.Target{Server: x.server.Name, Kind: mcp.Other}
	}
	return observationmask.WithTarget(r, target)
}

// contents is the result of a resources/read.
func contents(uri, mimeType, text string) []byte {
	type content struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType,omitempty"`
		Text     string `json:"text"`
	}
	result, _ := json.Marshal(struct { // of strings, so it cannot fail
		Contents []content `json:"contents"`
	}{[]content{{uri, mimeType, text}}})
	return result
}
