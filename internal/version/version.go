// Package version tells which version of this module is in the binary.
package version

import (
	"runtime/debug"
	"strings"
	"sync"
)

const (
	module = "github.com/caddy-mcp-gateway/caddy-mcp-gateway"

	// unversioned is what Go requires of a module that a folder replaces, if nobody
	// has said which version that is.
	unversioned = "v0.0.0-00010101000000-000000000000"
)

// Current returns what `caddy list-modules --versions` shows for the modules of this
// project, or "devel" if that says nothing: in tests, and where the module was
// replaced by a folder without a version.
func Current() string { return current() }

var current = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	return of(info)
})

func of(info *debug.BuildInfo) string {
	const none = "devel"
	if info == nil {
		return none
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == module && strings.HasPrefix(m.Version, "v") && m.Version != unversioned {
			return m.Version
		}
	}
	return none
}
