package toolpin

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A shared holds the pins in the shared store.
type shared struct {
	t    *testing.T
	text string
}

// sync merges the shared pins into those of a replica and stores the result. It reports whether
// lists have changed.
func (s *shared) sync(p *Pins) (news bool) {
	s.t.Helper()
	if s.text != "" {
		var err error
		if news, err = p.Merge([]byte(s.text)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.text = save(s.t, p)
	return news
}

// settled syncs all replicas and checks that syncing again changes nothing.
func (s *shared) settled(all ...*Pins) {
	s.t.Helper()
	for _, p := range slices.Concat(all, all) {
		s.sync(p)
	}
	for i, p := range all {
		before, version := s.text, p.Version()
		if s.sync(p) || s.text != before || p.Version() != version {
			s.t.Errorf("replica %d does not settle: %s after %s", i, s.text, before)
		}
	}
}

// accepts accepts a change.
func accepts(t *testing.T, p *Pins, tool string) {
	t.Helper()
	if n, err := p.Accept(tool, ""); n == 0 || err != nil {
		t.Errorf("accepted %d, %v", n, err)
	}
}

func TestMerge(t *testing.T) {
	see := func(p *Pins, tool string, definitions ...string) {
		for _, d := range definitions {
			p.Observe(tool, defined(d))
		}
	}
	for _, test := range []struct {
		name string
		do   func(t *testing.T, s *shared, a, b *Pins) (news bool) // of the last sync

		changed [2]bool // whether definitions 1 and 2 of the tool "x" are changes afterwards
		news    bool
	}{
		{"seen at one replica", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, false},
		{"seen at both replicas, the same definition", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			time.Sleep(time.Minute)
			see(b, "x", "1")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, false},
		{"the first definition in the store counts", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(b, "x", "2")
			time.Sleep(time.Minute)
			see(a, "x", "1")
			s.sync(a)
			news := s.sync(b)
			if !b.Changed("x") || a.Changed("x") {
				t.Error("the other definition is not withheld at once")
			}
			if c := b.Changes(); len(c) != 1 || string(c[0].After) != string(defined("2")) || c[0].Before != nil {
				t.Errorf("changes for operators: %v", c)
			}
			return news
		}, [2]bool{false, true}, true},
		{"accepted at one replica", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			see(b, "x", "1", "2")
			s.sync(a)
			s.sync(b)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, true},
		{"accepted at one replica that has not written its pins yet", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			see(b, "x", "1")
			s.sync(b)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, true},
		{"an accepted definition survives an old state of the store", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			s.sync(a)
			old := s.text
			accepts(t, a, "x")
			s.sync(a)
			s.text = old
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, false},
		{"accepted at both replicas, the later one counts", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "0", "1")
			s.sync(a)
			s.sync(b)
			see(b, "x", "2")
			accepts(t, b, "x")
			time.Sleep(time.Minute)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, true},
		{"accepted again in the same second", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "0", "2")
			accepts(t, a, "x")
			s.sync(a)
			s.sync(b)
			see(b, "x", "1")
			accepts(t, b, "x")
			s.sync(b)
			return s.sync(a)
		}, [2]bool{false, true}, true},
		{"lost pins that are still in the store", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			b.MarkLost()
			see(b, "x", "2")
			return s.sync(b)
		}, [2]bool{false, true}, true},
		{"lost pins, and the whole server accepted", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			time.Sleep(time.Minute)
			b.MarkLost()
			see(b, "x", "2")
			accepts(t, b, "")
			see(b, "x", "2")
			s.sync(b)
			return s.sync(a)
		}, [2]bool{true, false}, true},
		{"pins of the first format", func(_ *testing.T, s *shared, a, b *Pins) bool {
			s.text = `{"format":1,"tools":[{"tool":"x","hash":"` + digestWithoutMeta(defined("1")).String() +
				`","first_seen":"2000-01-01T00:00:00Z"}]}`
			s.sync(a)
			see(b, "x", "1")
			news := s.sync(b)
			see(a, "x", "1")
			see(b, "x", "1")
			s.sync(a)
			return news
		}, [2]bool{false, true}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, s := new(Pins), new(Pins), &shared{t: t}
				news := test.do(t, s, a, b)
				s.settled(a, b)
				if news != test.news {
					t.Errorf("lists have changed: %t", news)
				}
				var later Pins // a replica that starts later
				if _, err := later.Merge([]byte(s.text)); err != nil {
					t.Fatal(err)
				}
				for name, p := range map[string]*Pins{"a": a, "b": b, "a third": &later} {
					for i, want := range test.changed {
						if changed, _ := p.Observe("x", defined(fmt.Sprint(i+1))); changed != want {
							t.Errorf("definition %d at %s has changed: %t", i+1, name, changed)
						}
					}
				}
			})
		})
	}
}

// Accepting a whole server drops its pins at all replicas.
func TestMergeOfAnAcceptedServer(t *testing.T) {
	a, b, s := new(Pins), new(Pins), &shared{t: t}
	for i := range maxTools {
		a.Observe(fmt.Sprint(i), defined("1"))
	}
	s.settled(a, b)
	for _, p := range []*Pins{a, b} {
		p.Observe("more", defined("1"))
		if !p.Changed("more") {
			t.Fatal("a tool above the limit was pinned")
		}
	}
	accepts(t, a, "")
	a.Observe("more", defined("1"))
	s.sync(a)
	if news := s.sync(b); !news || b.Changed("more") || len(b.Changes()) != 0 {
		t.Errorf("at the other replica: %t, %v", news, b.Changes())
	}
	s.settled(a, b)
	if len(a.tools) != 1 || len(b.tools) != 1 {
		t.Errorf("%d and %d tools are pinned", len(a.tools), len(b.tools))
	}
}

func TestMergeThatFails(t *testing.T) {
	p := new(Pins)
	p.Observe("x", defined("1"))
	before := save(t, p)
	if _, err := p.Merge([]byte(`{"format":9}`)); err == nil || save(t, p) != before {
		t.Errorf("%v, then %s", err, save(t, p))
	}
}

func TestMergeKeepsTextsBounded(t *testing.T) {
	a, b, s := new(Pins), new(Pins), &shared{t: t}
	for i := range 100 {
		a.Observe(fmt.Sprint(i), defined("1"))
		b.Observe(fmt.Sprint(i), defined("2"))
		b.Observe(fmt.Sprint(i), defined("3"))
	}
	s.settled(a, b)
	n := 0
	for _, t := range b.tools {
		n += len(t.before) + len(t.after)
	}
	if n != b.textBytes || n == 0 {
		t.Errorf("%d bytes are kept, and %d are counted", n, b.textBytes)
	}
}
