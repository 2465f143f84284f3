package main

import (
	"reflect"
	"runtime/debug"
	"strings"
	"testing"
)

func TestCheckBinary(t *testing.T) {
	s := packModule(t, newModule(t))
	ours := debug.Module{Path: modulePath, Version: s.version, Sum: s.sum}
	caddy := debug.Module{Path: caddyPath, Version: "v2.11.7", Sum: "h1:caddy="}
	with := func(m debug.Module, change func(*debug.Module)) debug.Module { change(&m); return m }
	tests := []struct {
		name    string
		deps    []debug.Module
		wantErr string
	}{
		{"pinned modules", []debug.Module{ours, caddy}, ""},
		{"a newer Caddy", []debug.Module{ours, with(caddy, func(m *debug.Module) { m.Version = "v2.11.8" })},
			caddyPath + " v2.11.8 h1:caddy= is not pinned by go.sum"},
		{"a Caddy with other content", []debug.Module{ours, with(caddy, func(m *debug.Module) { m.Sum = "h1:other=" })},
			caddyPath + " v2.11.7 h1:other= is not pinned"},
		{"the sum of a go.mod", []debug.Module{ours, with(caddy, func(m *debug.Module) {
			m.Version, m.Sum = "v2.11.7/go.mod", "h1:mod"
		})}, "is not pinned by go.sum"},
		{"this module with other content", []debug.Module{with(ours, func(m *debug.Module) { m.Sum = "h1:other=" }), caddy},
			modulePath + " " + s.version + " h1:other= is not"},
		{"this module replaced by a directory",
			[]debug.Module{with(ours, func(m *debug.Module) { m.Replace = &debug.Module{Path: "/src"} }), caddy}, modulePath +
				" is replaced by /src"},
		{"without this module", []debug.Module{caddy}, "does not contain " + modulePath},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			info := &debug.BuildInfo{}
			for _, m := range tt.deps {
				info.Deps = append(info.Deps, &m)
			}
			err := s.check(info)
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

func TestEnvironmentOmitsBuildSettings(t *testing.T) {
	got := environment([]string{"PATH=/bin", "GOFLAGS=-race", "GOAMD64=v3", "CGO_ENABLED=1", "HOME=/h",
		"XCADDY_GO_BUILD_FLAGS=-v", "CADDY_VERSION=v2"})
	if want := []string{"PATH=/bin", "HOME=/h"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFileURL(t *testing.T) {
	for dir, want := range map[string]string{"/tmp/a b": "file:///tmp/a%20b", "C:/tmp": "file:///C:/tmp"} {
		if got := fileURL(dir); got != want {
			t.Errorf("%s: got %s, want %s", dir, got, want)
		}
	}
}
