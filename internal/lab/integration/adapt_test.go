package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddytest"
)

// Each Caddyfile under testdata/adapt becomes the JSON below its line of dashes, the format of
// Caddy's own tests.
func TestAdapt(t *testing.T) {
	isolate(t)
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, want, ok := strings.Cut(string(golden), "----------\n")
			if !ok {
				t.Fatal("no line of dashes")
			}
			caddytest.AssertAdapt(t, caddyfile, "caddyfile", strings.TrimSpace(want))
		})
	}
}
