package mcpconsole

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"sync"
	"time"
)

// An asset is a static file.
type asset struct {
	name, contentType, etag string
	content                 []byte
}

// contentTypes holds the content types of assets by file extension. The machine's MIME tables may
// have others.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// assets returns all assets.
var assets = sync.OnceValue(func() (all []*asset) {
	files, err := fs.ReadDir(assetFiles, "assets")
	if err != nil {
		panic(err) // embedded files always exist
	}
	for _, file := range files {
		content, err := assetFiles.ReadFile("assets/" + file.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		etag := `"` + hex.EncodeToString(sum[:16]) + `"`
		all = append(all, &asset{file.Name(), contentTypes[path.Ext(file.Name())], etag, content})
	}
	return all
})

// serve serves the asset. Browsers cache and revalidate it.
func (a *asset) serve(v *consoleRequest) {
	v.w.Header().Set("Content-Type", a.contentType)
	v.w.Header().Set("Cache-Control", "private, no-cache")
	v.w.Header().Set("ETag", a.etag)
	http.ServeContent(v.w, v.r, a.name, time.Time{}, bytes.NewReader(a.content))
}
