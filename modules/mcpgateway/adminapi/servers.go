package adminapi

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

// States of a server.
const (
	StateHealthy   = "healthy"
	StateUnhealthy = "unhealthy"
	StateUnknown   = "unknown"
)

// A ServerStatus is the status of a server.
type ServerStatus struct {
	Gateway      string            `json:"gateway"`
	Path         string            `json:"mcp_path"` // of the gateway
	Name         string            `json:"name"`
	Aliases      []string          `json:"aliases,omitempty"`
	From         string            `json:"from,omitempty"`    // file of servers_from that defines it
	URL          string            `json:"url,omitempty"`     // of the only upstream, without query
	Command      string            `json:"command,omitempty"` // program of the child processes, without arguments
	State        string            `json:"state"`             // StateHealthy, StateUnhealthy or StateUnknown
	LastError    string            `json:"last_error,omitempty"`
	FailedAt     time.Time         `json:"last_error_at,omitzero"`
	Tried        string            `json:"tried,omitempty"` // method that failed
	TriedPath    string            `json:"tried_path,omitempty"`
	Since        time.Time         `json:"since,omitzero"`     // when the state last changed
	Failures     int               `json:"failures,omitempty"` // consecutive failures
	Children     []ChildStatus     `json:"children,omitempty"`
	Upstreams    []UpstreamStatus  `json:"upstreams,omitempty"`
	Restarts     int               `json:"restarts"`
	Sessions     int               `json:"sessions"`          // sessions of clients with the server
	Latency      *activity.Latency `json:"latency,omitempty"` // of its last calls
	Tools        *int              `json:"tools,omitempty"`   // number of tools; nil if unknown
	Prompts      *int              `json:"prompts,omitempty"`
	Resources    *int              `json:"resources,omitempty"`
	ToolsChanged int               `json:"tools_changed"`       // tools with a changed definition
	Login        *login.Status     `json:"login,omitempty"`     // nil without oauth
	LoginURL     string            `json:"login_url,omitempty"` // where a person must log in
}

// A ChildStatus is the status of a child process.
type ChildStatus struct {
	Address string `json:"address"`
	stdio.Status
}

// An UpstreamStatus is the status of an upstream that is not a child process.
type UpstreamStatus struct {
	Address  string `json:"address"`
	Healthy  bool   `json:"healthy"` // not known to be down
	Requests int    `json:"requests"`
}

// A ServerCheck is the result of connecting to a server.
type ServerCheck struct {
	Gateway   string      `json:"gateway"`
	Path      string      `json:"mcp_path"` // of the gateway
	Name      string      `json:"name"`
	Up        bool        `json:"up"`
	Seconds   float64     `json:"seconds"` // duration of the check
	Protocol  string      `json:"protocol_version,omitempty"`
	Info      *ServerInfo `json:"server_info,omitempty"`
	Tools     int         `json:"tools"`
	Prompts   int         `json:"prompts"`
	Resources int         `json:"resources"`
	Templates int         `json:"resource_templates"`
	Tokens    int         `json:"tokens"` // of the definitions of its tools
	Code      string      `json:"code,omitempty"`
	Error     string      `json:"error,omitempty"`
	URL       string      `json:"url,omitempty"` // empty for a child process
	Stderr    []string    `json:"stderr,omitempty"`
}

// A ServerInfo is the name and version that a server reports.
type ServerInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// A FileStatus is the status of a file of servers_from.
type FileStatus struct {
	Gateway string    `json:"gateway"`
	Path    string    `json:"mcp_path"` // of the gateway
	File    string    `json:"file"`
	Servers []string  `json:"servers"`         // of its latest valid content
	Loaded  time.Time `json:"loaded,omitzero"` // when the gateway loaded these servers
	Notes   []string  `json:"notes,omitempty"` // on settings that the gateway ignores
	Error   string    `json:"error,omitempty"` // why its latest content is not used
}
