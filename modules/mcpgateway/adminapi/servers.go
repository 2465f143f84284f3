package adminapi

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

// The states of servers.
const (
	StateHealthy   = "healthy"
	StateUnhealthy = "unhealthy"
	StateUnknown   = "unknown"
)

// A ServerStatus is how a server is.
type ServerStatus struct {
	Gateway      string            `json:"gateway"`
	Path         string            `json:"mcp_path"` // of the gateway
	Name         string            `json:"name"`
	Aliases      []string          `json:"aliases,omitempty"`
	From         string            `json:"from,omitempty"`    // the file of servers_from
	URL          string            `json:"url,omitempty"`     // of the first upstream, without its query
	Command      string            `json:"command,omitempty"` // the program of child processes, without arguments
	State        string            `json:"state"`             // StateHealthy, StateUnhealthy or StateUnknown
	LastError    string            `json:"last_error,omitempty"`
	FailedAt     time.Time         `json:"last_error_at,omitzero"`
	Tried        string            `json:"tried,omitempty"` // method that failed
	TriedPath    string            `json:"tried_path,omitempty"`
	Since        time.Time         `json:"since,omitzero"`
	Failures     int               `json:"failures,omitempty"`
	Children     []ChildStatus     `json:"children,omitempty"`
	Upstreams    []UpstreamStatus  `json:"upstreams,omitempty"`
	Restarts     int               `json:"restarts"`
	Sessions     int               `json:"sessions"`          // of clients with it
	Latency      *activity.Latency `json:"latency,omitempty"` // of its last calls
	Tools        *int              `json:"tools,omitempty"`   // that the server has, as far as that is known
	Prompts      *int              `json:"prompts,omitempty"`
	Resources    *int              `json:"resources,omitempty"`
	ToolsChanged int               `json:"tools_changed"`
	Login        *login.Status     `json:"login,omitempty"`     // if the server has oauth
	LoginURL     string            `json:"login_url,omitempty"` // where a person has to log in
}

// A ChildStatus is how a child process is.
type ChildStatus struct {
	Address string `json:"address"`
	stdio.Status
}

// An UpstreamStatus is how an upstream is that is no child process.
type UpstreamStatus struct {
	Address  string `json:"address"`
	Healthy  bool   `json:"healthy"` // for all that is known
	Requests int    `json:"requests"`
}

// A ServerCheck is what came of an attempt to connect to a server.
type ServerCheck struct {
	Gateway   string      `json:"gateway"`
	Path      string      `json:"mcp_path"` // of the gateway
	Name      string      `json:"name"`
	Up        bool        `json:"up"`
	Seconds   float64     `json:"seconds"` // that it took
	Protocol  string      `json:"protocol_version,omitempty"`
	Info      *ServerInfo `json:"server_info,omitempty"`
	Tools     int         `json:"tools"`
	Prompts   int         `json:"prompts"`
	Resources int         `json:"resources"`
	Templates int         `json:"resource_templates"`
	Tokens    int         `json:"tokens"` // of the definitions of its tools
	Code      string      `json:"code,omitempty"`
	Error     string      `json:"error,omitempty"`
	URL       string      `json:"url,omitempty"` // of a server that is not a child process
	Stderr    []string    `json:"stderr,omitempty"`
}

// A ServerInfo is the name and version that a server gives itself.
type ServerInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// A FileStatus tells of a file of servers.
type FileStatus struct {
	Gateway string    `json:"gateway"`
	Path    string    `json:"mcp_path"` // of the gateway
	File    string    `json:"file"`
	Servers []string  `json:"servers"`         // that it has, or had when it could be read
	Loaded  time.Time `json:"loaded,omitzero"` // when the gateway got its latest servers
	Notes   []string  `json:"notes,omitempty"` // on what the gateway does not take over
	Error   string    `json:"error,omitempty"` // why the gateway does not use its latest content
}
