// Package jsontest reads JSON with encoding/json alone, as an oracle for fuzz tests of other
// parsers.
package jsontest

import (
	"bytes"
	"encoding/json"
)

// Value returns the value of a text, with numbers as written, or nil if it is not JSON.
func Value(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if !json.Valid(text) || d.Decode(&v) != nil {
		return nil
	}
	return v
}

// Members returns the members of an object as written, the last of repeated ones. It returns no
// members if the text is not an object.
func Members(text []byte) map[string]string {
	var object map[string]json.RawMessage
	_ = json.Unmarshal(text, &object)
	literals := make(map[string]string, len(object))
	for key, value := range object {
		literals[key] = string(value)
	}
	return literals
}

// Repeats reports whether any object in a text has a repeated key, which parsers read in different
// ways. It returns false if the text is not JSON.
func Repeats(text []byte) bool {
	if !json.Valid(text) {
		return false // the decoder would never end
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return repeats(d)
}

// repeats is Repeats for the next value.
func repeats(d *json.Decoder) bool {
	token, err := d.Token()
	open, isContainer := token.(json.Delim)
	if err != nil || !isContainer {
		return false
	}
	keys := map[json.Token]bool{}
	for d.More() {
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return false
			}
			if keys[key] {
				return true
			}
			keys[key] = true
		}
		if repeats(d) {
			return true
		}
	}
	_, _ = d.Token()
	return false
}
