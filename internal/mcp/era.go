package mcp

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// An Era is a family of protocol versions.
type Era uint8

const (
	// Legacy is the era with handshakes, sessions and server requests.
	Legacy Era = iota
	// Modern is the stateless era, in which each request identifies its client and version.
	Modern
)

const (
	// Latest is the newest legacy version.
	Latest = "2025-11-25"
	// Stateless is the first modern version.
	Stateless = "2026-07-28"
)

// legacyVersions are the versions with a handshake, oldest first.
var legacyVersions = []string{"2024-11-05", "2025-03-26", "2025-06-18", Latest}

// Versions returns all versions, oldest first.
func Versions() []string { return append(slices.Clone(legacyVersions), Stateless) }

// IsLegacy reports whether a version has a handshake.
func IsLegacy(version string) bool { return slices.Contains(legacyVersions, version) }

// EraOf returns the era of a request: modern if it has a version in _meta, or a version header that
// is not legacy. The method does not matter. Notifications of modern clients may have neither.
func EraOf(versionHeader string, m *jsonrpc.Message) Era {
	if m.Has(jsonrpc.ProtocolVersion) || versionHeader != "" && !IsLegacy(versionHeader) {
		return Modern
	}
	return Legacy
}

// NewestLegacy returns the newest legacy version among versions; "" for none.
func NewestLegacy(versions []string) string {
	for _, version := range slices.Backward(legacyVersions) {
		if slices.Contains(versions, version) {
			return version
		}
	}
	return ""
}

// Negotiate returns the version with which a server responds to a client: the requested one if the
// server supports it, otherwise its own.
func Negotiate(requested, server string) string {
	requestedIndex, serverIndex := slices.Index(legacyVersions, requested), slices.Index(legacyVersions, server)
	if requestedIndex < 0 || serverIndex >= 0 && requestedIndex > serverIndex {
		return server
	}
	return requested
}
