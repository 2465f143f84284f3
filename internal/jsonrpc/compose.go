package jsonrpc

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Request composes a request. params are JSON, or nil.
func Request(id uint64, method string, params []byte) []byte {
	return RequestAs(strconv.AppendUint(nil, id, 10), method, params)
}

// RequestAs is Request with an id that is a JSON literal.
func RequestAs(id []byte, method string, params []byte) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	return compose(m, method, params)
}

// Notification composes a notification. params are JSON, or nil.
func Notification(method string, params []byte) []byte {
	return compose([]byte(`{"jsonrpc":"2.0"`), method, params)
}

func compose(m []byte, method string, params []byte) []byte {
	m = append(m, `,"method":`...)
	m = append(m, Quote(method)...)
	if params != nil {
		m = append(m, `,"params":`...)
		m = append(m, params...)
	}
	return append(m, '}')
}

// ResultResponse composes the response with a result to the request with this id, a JSON literal.
func ResultResponse(id, result []byte) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	m = append(m, `,"result":`...)
	m = append(m, result...)
	return append(m, '}')
}

// ErrorResponse composes an error response without data.
func ErrorResponse(id []byte, code int, message string) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	m = append(m, `,"error":{"code":`...)
	m = strconv.AppendInt(m, int64(code), 10)
	m = append(m, `,"message":`...)
	m = append(m, Quote(message)...)
	return append(m, "}}"...)
}

// Quote returns a string as JSON.
func Quote(s string) []byte {
	if isPlain(s) {
		quoted := make([]byte, 0, len(s)+2)
		return append(append(append(quoted, '"'), s...), '"')
	}
	quoted, _ := json.Marshal(s) // never fails for a string
	return quoted
}

// isPlain reports whether json.Marshal would escape nothing in a string.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// Encode returns a value as JSON, and panics if it cannot. HTML characters are not escaped, because
// the text may go to a model, which pays for each escape.
func Encode(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
