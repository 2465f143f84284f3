package adminapi

import (
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A ToolListing holds the tools that a client sees.
type ToolListing struct {
	Tools     []ToolStatus   `json:"tools"`
	Decisions []ItemDecision `json:"decisions,omitzero"` // on all items of the servers; only on request
	Failed    []ToolFailure  `json:"failed"`
}

// An ItemDecision says what a client may do with a tool, prompt, resource or template, and why.
type ItemDecision struct {
	Gateway     string `json:"gateway"`
	Path        string `json:"mcp_path"` // of the gateway
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
	Gateway     string `json:"gateway"`
	Path        string `json:"mcp_path"`           // of the gateway
	Server      string `json:"server,omitempty"`   // empty for tools of the gateway itself
	Name        string `json:"name"`               // name that clients see
	Original    string `json:"original,omitempty"` // the server's name, if it differs
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
	Annotations string          `json:"annotations,omitempty"` // as rules name them
	Definition  json.RawMessage `json:"definition"`            // as clients see it
	Decision    *ItemDecision   `json:"decision,omitempty"`    // for ?client=
}

// A ToolFailure says why the tools of a server are not listed.
type ToolFailure struct {
	Gateway string `json:"gateway"`
	Path    string `json:"mcp_path"` // of the gateway
	Server  string `json:"server"`
	Code    string `json:"code"`
	Error   string `json:"error"`
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
