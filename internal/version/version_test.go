package version

import (
	"runtime/debug"
	"testing"
)

func TestOf(t *testing.T) {
	dependency := func(m debug.Module) *debug.BuildInfo {
		m.Path = module
		other := &debug.Module{Path: module + "-other", Version: "v9.9.9"}
		return &debug.BuildInfo{Main: debug.Module{Path: "caddy", Version: "(devel)"}, Deps: []*debug.Module{other, &m,
			other}}
	}
	folder := &debug.Module{Path: "/src", Version: "(devel)"}
	tests := []struct {
		name string
		info *debug.BuildInfo
		want string
	}{
		{"a dependency has the version that was asked for", dependency(debug.Module{Version: "v1.2.3"}), "v1.2.3"},
		{"a folder has the version it was built as", dependency(debug.Module{Version: "v1.2.3-dirty", Replace: folder}),
			"v1.2.3-dirty"},
		{"a folder without a version is devel", dependency(debug.Module{Version: unversioned, Replace: folder}), "devel"},
		{"a dependency in a workspace is devel", dependency(debug.Module{Version: "(devel)"}), "devel"},
		{"a program of this module has the version of its commit",
			&debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3+dirty"}}, "v1.2.3+dirty"},
		{"a program of this module without a commit is devel",
			&debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "devel"},
		{"a test is devel", &debug.BuildInfo{Main: debug.Module{Path: module}}, "devel"},
		{"a binary without this module is devel", &debug.BuildInfo{Main: debug.Module{Path: "caddy", Version: "v1.2.3"}},
			"devel"},
		{"a binary without build information is devel", nil, "devel"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := find(tt.info); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
