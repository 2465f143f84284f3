package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// The Caddyfiles of the Debian package and of the image are valid and formatted.
func TestPackagedCaddyfiles(t *testing.T) {
	isolate(t)
	for _, packaged := range []string{"deb", "image"} {
		file, err := filepath.Abs(filepath.Join("../../../packaging", packaged, "Caddyfile"))
		if err != nil {
			t.Fatal(err)
		}
		if out, err := caddy(t, "validate", "--adapter", "caddyfile", "--config", file).CombinedOutput(); err != nil ||
			strings.Contains(string(out), `"level":"warn"`) {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}
