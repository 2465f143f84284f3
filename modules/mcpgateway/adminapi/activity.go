package adminapi

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

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

// Savings are the characters kept out of contexts since the process started.
type Savings struct {
	Since         time.Time    `json:"since"`
	Total         Saving       `json:"total"` // of tool results
	Tools         []ToolSaving `json:"tools"` // largest saving first
	Days          []DaySaving  `json:"days"`  // of all gateways, latest last
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
