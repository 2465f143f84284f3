package mcpgateway

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// healthSegment is where probes ask for readiness, below mcp_path. So it is not the name of a server.
const healthSegment = "health"

// A readinessReport answers probes. It has the state of servers, but not their errors: anyone can
// ask for it.
type readinessReport struct {
	Status  string            `json:"status"`
	Servers map[string]string `json:"servers,omitempty"` // that are not up
}

// serveReadiness tells probes whether all servers are up that are not optional. It reads what is
// known of them, and contacts none.
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

// readiness returns the state of a server in a word, and whether it is up: it did not fail the last
// time that it was needed or checked. A server that was not needed yet is idle, and up: a probe
// must not start it.
func (s *Server) readiness() (word string, up bool) {
	if len(s.upstreams.children) > 0 {
		return s.childrenReadiness()
	}
	switch state := s.healthState(); {
	case !state.Known:
		return string(stdio.Idle), true
	default:
		// Calls that time out are not enough: clients choose what they call, and nothing else would ask
		// the server while load balancers send no requests.
		return state.name(), state.Healthy || state.Doubtful
	}
}

// childrenReadiness is readiness of child processes. One that runs is enough. Those of single
// sessions do not count.
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
