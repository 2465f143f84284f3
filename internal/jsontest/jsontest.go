// Package oracle reads JSON by encoding/json alone, without regard to time and memory. It
// is what fuzz tests compare with that read it in another way.
package jsontest

import (
	"bytes"
	"encoding/json"
)

// Value returns what a text says, with numbers as they are written, or nil if it is no
// JSON.
func Value(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if !json.Valid(text) || d.Decode(&v) != nil {
		return nil
	}
	return v
}

// Members returns the members of an object as they are written, and none of anything
// else. Of those that are there twice it is the last.
func Members(text []byte) map[string]string {
	var object map[string]json.RawMessage
	_ = json.Unmarshal(text, &object)
	literals := make(map[string]string, len(object))
	for key, value := range object {
		literals[key] = string(value)
	}
	return literals
}

// Repeats reports whether an object in a text has a key twice. What it says is then up to
// who reads it. A text that is no JSON has no objects.
func Repeats(text []byte) bool {
	if !json.Valid(text) {
		return false // and a decoder always has more of it
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
