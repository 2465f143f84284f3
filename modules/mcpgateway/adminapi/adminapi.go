// Package adminapi defines the requests and responses of the admin API of mcp_gateway. The gateway,
// its commands and the console use it.
package adminapi

import "time"

// MaxBody is the maximum size of a request in bytes.
const MaxBody = 2 << 20

// DefaultTimeout is how long a server may take by default to connect and to list its items.
const DefaultTimeout = 2 * time.Minute

// An Error is an error response of the API.
type Error struct {
	Status  int    `json:"-"`
	Message string `json:"error"`
	Code    string `json:"code"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }
