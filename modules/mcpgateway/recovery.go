package mcpgateway

import (
	"encoding/json"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/aggregate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/recovery"
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
				if !who.policy().Server(s.Name) {
					continue // not any more
				}
				if body, ok := s.mask.Original(who.name, handle); ok {
					return who.redactor().Body(body), true
				}
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
