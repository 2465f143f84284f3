package mcpgateway

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// healthSegment is the path of health probes below mcp_path. No server can have this name.
const healthSegment = "health"

// A readinessReport is the response to a probe. It has no error messages, because it needs no
// credentials.
type readinessReport struct {
	Status  string            `json:"status"`
	Servers map[string]string `json:"servers,omitempty"` // states of servers that are down
}

// serveReadiness responds to probes with whether all servers that are not optional are up. It
// contacts no server.
func (h *Handler) serveReadiness(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return nil
	}
	if failure := h.originPolicy().AdmitProbe(r); failure != nil {
		return writeJSON(w, failure.Status, readinessReport{Status: failure.Message})
	}
	down := map[string]string{}
	for _, s := range h.Servers {
		if word, up := s.readiness(); !up && !s.Optional {
			down[s.Name] = word
		}
	}
	if len(down) > 0 {
		return writeJSON(w, http.StatusServiceUnavailable, readinessReport{"not ready", down})
	}
	return writeJSON(w, http.StatusOK, readinessReport{Status: "ready"})
}

// readiness returns the state of a server, and whether it is up. It is up if its last request or
// check succeeded. A server that has not been used yet is idle and counts as up, because a probe
// must not start it.
func (s *Server) readiness() (word string, up bool) {
	if len(s.upstreams.children) > 0 {
		return s.childrenReadiness()
	}
	switch state := s.healthState(); {
	case !state.Known:
		return string(stdio.Idle), true
	default:
		// Calls that time out do not count: clients choose what they call, and while load balancers
		// send no requests, no call could succeed again.
		return state.name(), state.Healthy || state.Doubtful
	}
}

// childrenReadiness is readiness for a server with child processes. It is up if one of them runs.
// Processes of single sessions do not count.
func (s *Server) childrenReadiness() (word string, up bool) {
	word, up = string(stdio.Idle), true
	for _, child := range s.upstreams.children {
		for _, status := range child.transport.Status(child.host) {
			switch {
			case status.Session, status.State == stdio.Idle:
			case status.State == stdio.Running:
				return string(status.State), true
			default:
				word, up = string(status.State), false
			}
		}
	}
	return word, up
}
