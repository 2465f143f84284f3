package toolpin

import (
	"bytes"
	"encoding/json"
	"testing"
)

// Pins that are read from arbitrary text, written and read again are the same. A definition that
// differs from the first one is a change.
func FuzzPins(f *testing.F) {
	var pins Pins
	pins.Observe("a", []byte(`{"name":"a"}`))
	pins.Observe("b", []byte(`{"name":"b"}`))
	saved, err := json.Marshal(&pins)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved, "a", []byte(`{"name":"a"}`), []byte(`{"name":"a","x":1}`))
	f.Add([]byte(`{}`), "", []byte(`{}`), []byte(` {} `))
	f.Add([]byte(`null`), "x", []byte(`{"a":1,"b":2}`), []byte(`{"b":2,"a":1.0}`))
	f.Add([]byte(`{"a":"00"}`), "a", []byte(`x`), []byte(`y`))
	f.Add([]byte(`[]`), "a", []byte(`{"_meta":1}`), []byte(`{"_meta":2}`))
	f.Add([]byte(`{"format":1,"tools":[{"tool":"a","hash":"00"}]}`), "a", []byte(`{"a":1,"a":2}`), []byte(`{"a":1,"a":2}`))
	f.Add(saved, "a", []byte("\"\xff\""), []byte(`null`))
	f.Fuzz(func(t *testing.T, saved []byte, tool string, first, second []byte) {
		var p, again Pins
		if json.Unmarshal(saved, &p) == nil {
			written, err := json.Marshal(&p)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(written, &again); err != nil {
				t.Fatalf("%q was written as %q: %v", saved, written, err)
			}
			if rewritten, err := json.Marshal(&again); err != nil || !bytes.Equal(rewritten, written) {
				t.Fatalf("%q was written as %q, then as %q, %v", saved, written, rewritten, err)
			}
			for _, changed := range p.Changes() {
				t.Fatalf("%q has changes: %+v", saved, changed)
			}
			// Pins that were written and read again give the same result.
			a, newsA := p.Observe(tool, first)
			if b, newsB := again.Observe(tool, first); a != b || newsA != newsB || p.Changed(tool) != a {
				t.Fatalf("%q: %q changed %t, read again %t", saved, first, a, b)
			}
		}
		var fresh Pins
		if changed, _ := fresh.Observe(tool, first); changed || fresh.Changed(tool) {
			t.Fatalf("%q of %q is a change, but the first definition", first, tool)
		}
		differs := digestOf(first) != digestOf(second)
		if changed, _ := fresh.Observe(tool, second); changed != differs || fresh.Changed(tool) != differs ||
			(len(fresh.Changes()) == 1) != differs {
			t.Fatalf("%q after %q is a change: %t, want %t", second, first, changed, differs)
		}
		if accepted, err := fresh.Accept(tool, ""); err != nil || (accepted == 1) != differs || fresh.Changed(tool) {
			t.Fatalf("accepted %d, %v", accepted, err)
		}
		if changed, _ := fresh.Observe(tool, first); changed != differs {
			t.Fatalf("%q after %q was accepted is a change: %t", first, second, changed)
		}
	})
}
