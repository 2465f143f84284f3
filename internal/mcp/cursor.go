package mcp

import (
	"encoding/base64"
	"errors"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

var errCursor = errors.New("the cursor is not one that this list gave")

// Cursor returns the cursor of a list that goes on at this offset.
func Cursor(offset int) string {
	place := append([]byte(nil), `{"offset":`...)
	place = strconv.AppendInt(place, int64(offset), 10)
	return base64.RawURLEncoding.EncodeToString(append(place, '}'))
}

var cursorPaths = jsonspan.CompilePaths("offset")

// ParseCursor returns the offset that a cursor stands for. It can be beyond the
// end of the list, which may have become shorter. Any flavour of base64 will do.
func ParseCursor(cursor string) (offset int, err error) {
	place, err := decodeBase64(cursor)
	if err != nil {
		return 0, errCursor
	}
	var literal []byte
	err = cursorPaths.Find(place, func(_ int, v jsonspan.Value) {
		literal = place[v.Start:v.End]
	})
	if err != nil {
		return 0, errCursor
	}
	// One bit less than an int has: no sign.
	n, err := strconv.ParseUint(string(literal), 10, strconv.IntSize-1)
	if err != nil {
		return 0, errCursor
	}
	return int(n), nil
}
