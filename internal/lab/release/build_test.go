package main

import (
	"reflect"
	"runtime/debug"
	"strings"
	"testing"
)

func TestCheckOfBinary(t *testing.T) {
	s := packed(t, aModule(t))
	ours := debug.Module{Path: modulePath, Version: s.version, Sum: s.sum}
	caddy := debug.Module{Path: caddyPath, Version: "v2.11.7", Sum: "h1:caddy="}
	with := func(m debug.Module, change func(*debug.Module)) debug.Module { change(&m); return m }
	tests := []struct {
		name    string
		deps    []debug.Module
		wantErr string
	}{
		{"what go.sum pins", []debug.Module{ours, caddy}, ""},
		{"a newer Caddy", []debug.Module{ours, with(caddy, func(m *debug.Module) { m.Version = "v2.11.8" })}, caddyPath + " v2.11.8 h1:caddy= is not what go.sum pins"},
		{"a Caddy of other content", []debug.Module{ours, with(caddy, func(m *debug.Module) { m.Sum = "h1:other=" })}, caddyPath + " v2.11.7 h1:other= is not"},
		{"the sum of a go.mod", []debug.Module{ours, with(caddy, func(m *debug.Module) { m.Version, m.Sum = "v2.11.7/go.mod", "h1:mod" })}, "is not what go.sum pins"},
		{"another of us", []debug.Module{with(ours, func(m *debug.Module) { m.Sum = "h1:other=" }), caddy}, modulePath + " " + s.version + " h1:other= is not"},
		{"a folder in our place", []debug.Module{with(ours, func(m *debug.Module) { m.Replace = &debug.Module{Path: "/src"} }), caddy}, modulePath + " is replaced by /src"},
		{"none of us", []debug.Module{caddy}, "does not have " + modulePath},
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

func TestEnvironmentLeavesOutWhatChangesBuilds(t *testing.T) {
	got := environment([]string{"PATH=/bin", "GOFLAGS=-race", "GOAMD64=v3", "CGO_ENABLED=1", "HOME=/h", "XCADDY_GO_BUILD_FLAGS=-v", "CADDY_VERSION=v2"})
	if want := []string{"PATH=/bin", "HOME=/h"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestFileURL(t *testing.T) {
	for dir, want := range map[string]string{"/tmp/a b": "file:///tmp/a%20b", "C:/tmp": "file:///C:/tmp"} {
		if got := fileURL(dir); got != want {
			t.Errorf("%s: got %s, want %s", dir, got, want)
		}
	}
}
