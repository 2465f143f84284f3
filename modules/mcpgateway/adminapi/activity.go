package adminapi

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// An Overview tells what goes on.
type Overview struct {
	Since    time.Time           `json:"since"` // when the process began
	Gateways []GatewayStatus     `json:"gateways"`
	Store    *mcpstore.Status    `json:"store,omitempty"` // what replicas share
	Total    activity.Sums       `json:"total"`           // since then
	Recent   []activity.Interval `json:"recent"`          // ten minutes, by ten seconds
}

// A GatewayStatus tells of a gateway.
type GatewayStatus struct {
	Name    string   `json:"name"`
	Path    string   `json:"mcp_path"`
	URLs    []string `json:"urls"`    // where clients reach it
	Admits  string   `json:"admits"`  // which clients may use it
	Auth    bool     `json:"auth"`    // they need credentials of it
	Record  bool     `json:"record"`  // arguments and results of calls are kept for the admin API
	Servers int      `json:"servers"` // that it has
	Up      int      `json:"up"`      // those of them that are not known to be down
	Clients int      `json:"clients"` // sessions that are remembered
}

// Savings tell how much was kept out of contexts since the process began.
type Savings struct {
	Since         time.Time    `json:"since"`
	Total         Saving       `json:"total"` // of results of tools
	Tools         []ToolSaving `json:"tools"` // the one with the most characters first
	Days          []DaySaving  `json:"days"`  // of all gateways, the latest last
	Conversations Saving       `json:"conversations"`
	Price         float64      `json:"price,omitempty"` // of a million tokens, as it was asked
}

// A Saving is what was kept out of contexts.
type Saving struct {
	activity.Sums
	Tokens int64   `json:"tokens"`          // that cut_chars are, estimated
	Money  float64 `json:"money,omitempty"` // that these cost at the price
}

// A ToolSaving is what was kept out of results of a tool.
type ToolSaving struct {
	activity.Tool
	Saving
}

// A DaySaving is what was kept out of results on a day.
type DaySaving struct {
	Date string `json:"date"`
	Saving
}

// An Original is a whole text that was cut in the result of a call.
type Original struct {
	ID    string `json:"id"`
	Chars int    `json:"chars"`
	Text  string `json:"text"`
}
