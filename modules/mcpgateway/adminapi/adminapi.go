// Package adminapi defines the requests and responses of the admin API of mcp_gateway. The gateway,
// its commands and the console use it.
package adminapi

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// MaxBody is the maximum size of a request in bytes.
const MaxBody = 2 << 20

// MaxPrice is the maximum price of a million tokens.
const MaxPrice = 1_000_000

// DefaultTimeout is how long a server may take by default to connect and to list its items.
const DefaultTimeout = 2 * time.Minute

// GatewayParameter is the query parameter that selects a gateway, in the message of an error with
// the code ambiguous. The commands name their flag instead.
const GatewayParameter = "?gateway="

// An Error is an error response of the API.
type Error struct {
	Status  int    `json:"-"`
	Message string `json:"error"`
	Code    string `json:"code"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// A GatewayID identifies the gateway of an item.
type GatewayID struct {
	Gateway string `json:"gateway"` // its name
	Path    string `json:"mcp_path"`
}

// Label returns the name of the gateway, or its path if it has no name.
func (id GatewayID) Label() string { return cmp.Or(id.Gateway, id.Path) }

// States of a server.
const (
	StateHealthy   = "healthy"
	StateUnhealthy = "unhealthy"
	StateUnknown   = "unknown"
)

// A ServerStatus is the status of a server.
type ServerStatus struct {
	GatewayID
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
	GatewayID
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
	GatewayID
	File    string    `json:"file"`
	Servers []string  `json:"servers"`         // that run; those of its latest content unless Error is set
	Loaded  time.Time `json:"loaded,omitzero"` // when the gateway loaded these servers
	Notes   []string  `json:"notes,omitempty"` // on settings that the gateway ignores
	Error   string    `json:"error,omitempty"` // why its latest content is not used
}

// A ToolListing holds the tools that a client sees.
type ToolListing struct {
	Tools     []ToolStatus   `json:"tools"`
	Decisions []ItemDecision `json:"decisions,omitzero"` // on all items of the servers; only on request
	Failed    []ToolFailure  `json:"failed"`
}

// An ItemDecision says what a client may do with a tool, prompt, resource or template, and why.
type ItemDecision struct {
	GatewayID
	Server      string `json:"server"`
	Kind        string `json:"kind"`                  // tool, prompt, resource or template
	Name        string `json:"name"`                  // the server's name for it
	Shown       string `json:"shown,omitempty"`       // name that the client sees; empty if hidden
	Action      string `json:"action"`                // allow, confirm or deny
	Depends     bool   `json:"depends,omitempty"`     // arguments of the call may change it
	Rule        string `json:"rule"`                  // rule that decided, or why none did
	Annotations string `json:"annotations,omitempty"` // of a tool, as in rules
}

// A ToolStatus is a tool and the size of its definition.
type ToolStatus struct {
	GatewayID
	Server      string `json:"server,omitempty"`    // empty for tools of the gateway itself
	Name        string `json:"name"`                // name that clients see
	Qualified   string `json:"qualified,omitempty"` // <server>::<name>, also with another separator
	Original    string `json:"original,omitempty"`  // the server's name, if it differs
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"` // beginning of the description
	Chars       int    `json:"chars"`
	Tokens      int    `json:"tokens"`       // in o200k_base
	FocusTokens int    `json:"focus_tokens"` // part of Tokens for the focus argument

	// Clients are the client blocks that may call it; null if the gateway has none.
	Clients []string `json:"clients"`
	// AllClients reports whether Clients are all client blocks of the gateway.
	AllClients bool `json:"all_clients,omitempty"`
}

// A ToolDetail is a tool with its definition.
type ToolDetail struct {
	ToolStatus
	Annotations  string          `json:"annotations,omitempty"` // as rules name them
	Definition   json.RawMessage `json:"definition"`            // as clients see it
	WithoutFocus json.RawMessage `json:"-"`                     // Definition without the focus argument
	Decision     *ItemDecision   `json:"decision,omitempty"`    // for ?client=
}

// A ToolFailure says why the tools of a server are not listed.
type ToolFailure struct {
	GatewayID
	Server string `json:"server"`
	Code   string `json:"code"`
	Error  string `json:"error"`
}

// A ToolChange is a tool whose definition has changed.
type ToolChange struct {
	Gateway string `json:"gateway"`
	Server  string `json:"server"`
	toolpin.Change
}

// A ToolCall is the operator's request to call a tool.
type ToolCall struct {
	Tool      string                     `json:"tool"` // name that clients see
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
	Texts     map[string]string          `json:"texts,omitempty"`    // more arguments, converted to the types of the tool
	Client    string                     `json:"client,omitempty"`   // apply the rules of this client; empty for none
	Raw       bool                       `json:"raw,omitempty"`      // return the server's result, not shortened
	Both      bool                       `json:"both,omitempty"`     // return both results of one call
	Progress  bool                       `json:"progress,omitempty"` // send progress as lines before the result
	Timeout   string                     `json:"timeout,omitempty"`  // for connecting
}

// A CallReport is a line of the response to a ToolCall.
type CallReport struct {
	Progress json.RawMessage `json:"progress,omitempty"` // params of a progress notification

	Result   json.RawMessage `json:"result,omitempty"`
	Raw      json.RawMessage `json:"raw,omitempty"`            // the server's result, with Both; a string if too long
	Seconds  float64         `json:"seconds,omitempty"`        // duration of the call
	Received int64           `json:"received_bytes,omitempty"` // bytes from the server, before shortening
}

// An Overview is the activity of a process.
type Overview struct {
	Since    time.Time           `json:"since"` // start of the process
	Gateways []GatewayStatus     `json:"gateways"`
	Store    *mcpstore.Status    `json:"store,omitempty"` // shared by replicas
	Total    activity.Sums       `json:"total"`           // since the start
	Recent   []activity.Interval `json:"recent"`          // last ten minutes, in steps of ten seconds
}

// A GatewayStatus is the status of a gateway.
type GatewayStatus struct {
	Name    string   `json:"name"`
	Path    string   `json:"mcp_path"`
	URLs    []string `json:"urls"`    // for clients
	Admits  string   `json:"admits"`  // which clients may use it
	Auth    bool     `json:"auth"`    // clients need credentials
	Record  bool     `json:"record"`  // arguments and results of calls are kept
	Servers int      `json:"servers"` // number of servers
	Up      int      `json:"up"`      // servers that are not known to be down
	Clients int      `json:"clients"` // sessions in memory
}

// Label returns the name of the gateway, or its path if it has no name.
func (s GatewayStatus) Label() string { return GatewayID{s.Name, s.Path}.Label() }

// Savings are the characters kept out of contexts since the process started. Conversations are those
// of tool_result_mask; no gateway has them.
type Savings struct {
	Since         time.Time    `json:"since"`
	Total         Saving       `json:"total"` // of tool results
	Tools         []ToolSaving `json:"tools"` // largest saving first
	Days          []DaySaving  `json:"days"`  // latest last
	Conversations Saving       `json:"conversations"`
	Price         float64      `json:"price,omitempty"` // per million tokens, as requested
}

// A Saving is an amount of text kept out of contexts.
type Saving struct {
	activity.Sums
	Tokens int64   `json:"tokens"`          // estimate for cut_chars
	Money  float64 `json:"money,omitempty"` // cost of the tokens at the price
}

// A ToolSaving is the saving in results of a tool.
type ToolSaving struct {
	activity.Tool
	Saving
}

// A DaySaving is the saving on a day.
type DaySaving struct {
	Date string `json:"date"`
	Saving
}

// An Original is the unshortened text of a part of a result.
type Original struct {
	ID    string `json:"id"`
	Chars int    `json:"chars"`
	Text  string `json:"text"`
}
