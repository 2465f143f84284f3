// Package version returns the version of this module in the binary.
package version

import (
	"runtime/debug"
	"strings"
	"sync"
)

const (
	module = "github.com/caddy-mcp-gateway/caddy-mcp-gateway"

	// unversioned is the version that Go gives to a module replaced by a folder without a version.
	unversioned = "v0.0.0-00010101000000-000000000000"
)

// Current returns the version that `caddy list-modules --versions` shows for the modules of this
// project. It is "devel" in tests, and if a folder without a version replaces the module.
func Current() string { return current() }

var current = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	return find(info)
})

func find(info *debug.BuildInfo) string {
	const unknown = "devel"
	if info == nil {
		return unknown
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == module && strings.HasPrefix(m.Version, "v") && m.Version != unversioned {
			return m.Version
		}
	}
	return unknown
}
