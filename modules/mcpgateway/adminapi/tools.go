package adminapi

import (
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A ToolListing has the tools that a client sees.
type ToolListing struct {
	Tools     []ToolStatus   `json:"tools"`
	Decisions []ItemDecision `json:"decisions,omitzero"` // on all that servers have; only if they are asked for
	Failed    []ToolFailure  `json:"failed"`
}

// An ItemDecision tells what a client may do with something that a server has, and why.
type ItemDecision struct {
	Gateway     string `json:"gateway"`
	Path        string `json:"mcp_path"` // of the gateway
	Server      string `json:"server"`
	Kind        string `json:"kind"`                  // tool, prompt, resource or template
	Name        string `json:"name"`                  // as the server has it
	Shown       string `json:"shown,omitempty"`       // as the client sees it; empty if it does not
	Action      string `json:"action"`                // allow, confirm or deny
	Depends     bool   `json:"depends,omitempty"`     // on the arguments of the call: with others it may differ
	Rule        string `json:"rule"`                  // that decided, or why none has
	Annotations string `json:"annotations,omitempty"` // of a tool, as rules name them
}

// A ToolStatus tells of a tool, and what its definition costs in the context of a model.
type ToolStatus struct {
	Gateway     string `json:"gateway"`
	Path        string `json:"mcp_path"`           // of the gateway
	Server      string `json:"server,omitempty"`   // empty for the tools of the gateway itself
	Name        string `json:"name"`               // as clients see it
	Original    string `json:"original,omitempty"` // its name at the server, if clients see another one
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"` // as clients see it, its beginning
	Chars       int    `json:"chars"`
	Tokens      int    `json:"tokens"`       // of o200k_base
	FocusTokens int    `json:"focus_tokens"` // those of them that the focus argument adds

	// Clients are the names of the client blocks that may call it; null if the gateway has none.
	Clients []string `json:"clients"`
	// AllClients is whether these are all that the gateway has.
	AllClients bool `json:"all_clients,omitempty"`
}

// A ToolDetail tells all of a tool.
type ToolDetail struct {
	ToolStatus
	Annotations string          `json:"annotations,omitempty"` // as rules name them
	Definition  json.RawMessage `json:"definition"`            // as clients see it
	Decision    *ItemDecision   `json:"decision,omitempty"`    // for ?client=
}

// A ToolFailure tells why the tools of a server are not listed.
type ToolFailure struct {
	Gateway string `json:"gateway"`
	Path    string `json:"mcp_path"` // of the gateway
	Server  string `json:"server"`
	Code    string `json:"code"`
	Error   string `json:"error"`
}

// A ToolChange is a tool of a gateway that has changed.
type ToolChange struct {
	Gateway string `json:"gateway"`
	Server  string `json:"server"`
	toolpin.Change
}

// A ToolCall is a call of a tool as the operator asks for it.
type ToolCall struct {
	Tool      string                     `json:"tool"` // as clients write it
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
	Texts     map[string]string          `json:"texts,omitempty"`    // more arguments, of the types that the tool wants
	Client    string                     `json:"client,omitempty"`   // whose rules apply; empty for none
	Raw       bool                       `json:"raw,omitempty"`      // the result is that of the server
	Both      bool                       `json:"both,omitempty"`     // the answer has both, from one call
	Progress  bool                       `json:"progress,omitempty"` // progress comes as lines before the answer
	Timeout   string                     `json:"timeout,omitempty"`  // to connect
}

// A CallReport is what came of it.
type CallReport struct {
	Progress json.RawMessage `json:"progress,omitempty"` // params of a notification, before the answer

	Result   json.RawMessage `json:"result,omitempty"`
	Raw      json.RawMessage `json:"raw,omitempty"`            // as sent, if both were asked for; a string if it is too long
	Seconds  float64         `json:"seconds,omitempty"`        // that it took
	Received int64           `json:"received_bytes,omitempty"` // from the server, before masking
}
