package jsonrpc

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Request composes a request of our own. Params are JSON, or nil.
func Request(id uint64, method string, params []byte) []byte {
	return RequestAs(strconv.AppendUint(nil, id, 10), method, params)
}

// RequestAs is Request for an id that is given as a literal.
func RequestAs(id []byte, method string, params []byte) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	return compose(m, method, params)
}

// Notification composes a notification. Params are JSON, or nil.
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

// Answer composes the answer to the request with this id, given as a literal.
func Answer(id, result []byte) []byte {
	m := append([]byte(nil), `{"jsonrpc":"2.0","id":`...)
	m = append(m, id...)
	m = append(m, `,"result":`...)
	m = append(m, result...)
	return append(m, '}')
}

// Refusal composes an answer that is an error, without data.
func Refusal(id []byte, code int, message string) []byte {
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
	quoted, _ := json.Marshal(s) // strings always can be
	return quoted
}

// isPlain reports whether nothing of a text is escaped where it is quoted.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// Encode returns a value as JSON, which it must be able to become. What is HTML in it
// stays readable: it ends up with a model, which pays for each escape.
func Encode(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
