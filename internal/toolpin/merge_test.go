package toolpin

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A shared has the pins that replicas have in common.
type shared struct {
	t    *testing.T
	text string
}

// sync brings a replica together with the others. It reports whether lists are others.
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

// settled brings all replicas together, and checks that there is nothing left to do.
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
			p.Observe(tool, say(d))
		}
	}
	for _, test := range []struct {
		name string
		do   func(t *testing.T, s *shared, a, b *Pins) (news bool) // at the one that is last

		changed [2]bool // whether definitions 1 and 2 of the tool "x" are changes then
		news    bool
	}{
		{"seen at one", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, false},
		{"seen alike at both", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			time.Sleep(time.Minute)
			see(b, "x", "1")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{false, true}, false},
		{"the first in the store is the one", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(b, "x", "2")
			time.Sleep(time.Minute)
			see(a, "x", "1")
			s.sync(a)
			news := s.sync(b)
			if !b.Changed("x") || a.Changed("x") {
				t.Error("the other one is not withheld at once")
			}
			if c := b.Changes(); len(c) != 1 || string(c[0].After) != string(say("2")) || c[0].Before != nil {
				t.Errorf("changes for operators: %v", c)
			}
			return news
		}, [2]bool{false, true}, true},
		{"accepted at one", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			see(b, "x", "1", "2")
			s.sync(a)
			s.sync(b)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, true},
		{"accepted at one, before the other has written what it has seen", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			see(b, "x", "1")
			s.sync(b)
			accepts(t, a, "x")
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, true},
		{"what was accepted is not lost if the store is an old one", func(t *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1", "2")
			s.sync(a)
			old := s.text
			accepts(t, a, "x")
			s.sync(a)
			s.text = old
			s.sync(a)
			return s.sync(b)
		}, [2]bool{true, false}, false},
		{"accepted at both, the later counts", func(t *testing.T, s *shared, a, b *Pins) bool {
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
		{"lost, and still in the store", func(_ *testing.T, s *shared, a, b *Pins) bool {
			see(a, "x", "1")
			s.sync(a)
			b.MarkLost()
			see(b, "x", "2")
			return s.sync(b)
		}, [2]bool{false, true}, true},
		{"lost, and accepted as a whole", func(t *testing.T, s *shared, a, b *Pins) bool {
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
		{"of the first format", func(_ *testing.T, s *shared, a, b *Pins) bool {
			s.text = `{"format":1,"tools":[{"tool":"x","hash":"` + digestWithoutMeta(say("1")).String() +
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
					t.Errorf("lists are others: %t", news)
				}
				var later Pins // another replica, which has read it all
				if _, err := later.Merge([]byte(s.text)); err != nil {
					t.Fatal(err)
				}
				for name, p := range map[string]*Pins{"a": a, "b": b, "a third": &later} {
					for i, want := range test.changed {
						if changed, _ := p.Observe("x", say(fmt.Sprint(i+1))); changed != want {
							t.Errorf("definition %d at %s has changed: %t", i+1, name, changed)
						}
					}
				}
			})
		})
	}
}

// To accept the whole server is to begin anew with it, everywhere.
func TestMergeOfAServerThatBeginsAnew(t *testing.T) {
	a, b, s := new(Pins), new(Pins), &shared{t: t}
	for i := range maxTools {
		a.Observe(fmt.Sprint(i), say("1"))
	}
	s.settled(a, b)
	for _, p := range []*Pins{a, b} {
		p.Observe("more", say("1"))
		if !p.Changed("more") {
			t.Fatal("there is room")
		}
	}
	accepts(t, a, "")
	a.Observe("more", say("1"))
	s.sync(a)
	if news := s.sync(b); !news || b.Changed("more") || len(b.Changes()) != 0 {
		t.Errorf("at the other: %t, %v", news, b.Changes())
	}
	s.settled(a, b)
	if len(a.tools) != 1 || len(b.tools) != 1 {
		t.Errorf("%d and %d are pinned", len(a.tools), len(b.tools))
	}
}

func TestMergeThatFails(t *testing.T) {
	p := new(Pins)
	p.Observe("x", say("1"))
	before := save(t, p)
	if _, err := p.Merge([]byte(`{"format":9}`)); err == nil || save(t, p) != before {
		t.Errorf("%v, left is %s", err, save(t, p))
	}
}

func TestMergeKeepsTextsBounded(t *testing.T) {
	a, b, s := new(Pins), new(Pins), &shared{t: t}
	for i := range 100 {
		a.Observe(fmt.Sprint(i), say("1"))
		b.Observe(fmt.Sprint(i), say("2"))
		b.Observe(fmt.Sprint(i), say("3"))
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
