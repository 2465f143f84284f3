package mcp

import (
	"encoding/base64"
	"errors"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

var errCursor = errors.New("the cursor is not from this list")

// Cursor returns the cursor for the page of a list that begins at offset.
func Cursor(offset int) string {
	text := append([]byte(nil), `{"offset":`...)
	text = strconv.AppendInt(text, int64(offset), 10)
	return base64.RawURLEncoding.EncodeToString(append(text, '}'))
}

var cursorPaths = jsonspan.CompilePaths("offset")

// ParseCursor returns the offset in a cursor. It can be beyond the end of the list, which may have
// become shorter. Any variant of base64 is accepted.
func ParseCursor(cursor string) (offset int, err error) {
	text, err := decodeBase64(cursor)
	if err != nil {
		return 0, errCursor
	}
	var literal []byte
	err = cursorPaths.Find(text, func(_ int, v jsonspan.Value) {
		literal = text[v.Start:v.End]
	})
	if err != nil {
		return 0, errCursor
	}
	// One bit less than an int: no sign.
	n, err := strconv.ParseUint(string(literal), 10, strconv.IntSize-1)
	if err != nil {
		return 0, errCursor
	}
	return int(n), nil
}
