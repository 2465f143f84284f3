package mcp

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// An Era is a family of protocol revisions.
type Era uint8

const (
	// Legacy is the era of handshakes, sessions and questions of the server.
	Legacy Era = iota
	// Modern is the stateless era, in which each request says who it is.
	Modern
)

const (
	// Latest is the newest revision of the legacy era.
	Latest = "2025-11-25"
	// Stateless is the first revision of the modern era.
	Stateless = "2026-07-28"
)

// legacy are the revisions with a handshake, oldest first.
var legacy = []string{"2024-11-05", "2025-03-26", "2025-06-18", Latest}

// Versions returns all revisions, oldest first.
func Versions() []string { return append(slices.Clone(legacy), Stateless) }

// IsLegacy reports whether a revision has a handshake.
func IsLegacy(version string) bool { return slices.Contains(legacy, version) }

// EraOf tells the era of a request by what it says of itself: a version in _meta,
// or a version in its header that is not of the legacy era. Its method does not
// matter. Notifications of modern clients may say nothing.
func EraOf(versionHeader string, m *jsonrpc.Message) Era {
	if m.Has(jsonrpc.ProtocolVersion) || versionHeader != "" && !IsLegacy(versionHeader) {
		return Modern
	}
	return Legacy
}

// NewestLegacy returns the newest of some revisions that has a handshake, "" if none has.
func NewestLegacy(versions []string) string {
	for _, version := range slices.Backward(legacy) {
		if slices.Contains(versions, version) {
			return version
		}
	}
	return ""
}

// Negotiate returns the revision that a server answers to a client that asks for
// one: the same if the server can speak it, else its own.
func Negotiate(requested, server string) string {
	asked, can := slices.Index(legacy, requested), slices.Index(legacy, server)
	if asked < 0 || can >= 0 && asked > can {
		return server
	}
	return requested
}
