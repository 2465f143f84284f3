package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// The Caddyfiles of the Debian package and of the image load, and are formatted.
func TestPackagedCaddyfiles(t *testing.T) {
	isolate(t)
	files, err := filepath.Glob("../../../packaging/*/Caddyfile")
	if err != nil || len(files) != 2 {
		t.Fatalf("%v: %v", files, err)
	}
	for _, file := range files {
		file, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := caddy(t, "validate", "--adapter", "caddyfile", "--config", file).CombinedOutput(); err != nil || strings.Contains(string(out), `"level":"warn"`) {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}
