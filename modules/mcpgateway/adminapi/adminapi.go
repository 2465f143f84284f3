// Package adminapi has what the admin API of mcp_gateway is asked for and answers with, for those who
// answer and those who ask: the gateway, its commands and the console.
package adminapi

import "time"

// MaxBody is how many bytes a request may have.
const MaxBody = 2 << 20

// DefaultTimeout is how long a server may take to connect and to list if a request does not say it.
const DefaultTimeout = 2 * time.Minute

// An Error is an error that the API answers with.
type Error struct {
	Status  int    `json:"-"`
	Message string `json:"error"`
	Code    string `json:"code"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }
