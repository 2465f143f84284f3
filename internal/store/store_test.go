package store

import (
	"bytes"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// newStore returns an empty store and its quota kind.
func newStore(limits Limits) (*Store, *quota.Kind) {
	kind := quota.NewKind("test")
	return New(kind, limits, nil), kind
}

func TestStoreReturnsWhatWasPut(t *testing.T) {
	s, _ := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
	original := []byte("as it was\x00\xff")
	if !s.Put("alice", "h", original) {
		t.Fatal("not kept")
	}
	original[0] = 'X'
	if got, ok := s.Get("alice", "h"); !ok || string(got) != "as it was\x00\xff" {
		t.Errorf("got %q, %v", got, ok)
	}
	for _, k := range [][2]string{{"bob", "h"}, {"", "h"}, {"alice", "g"}} {
		if _, ok := s.Get(k[0], k[1]); ok {
			t.Errorf("%q got alice's original with the handle %q", k[0], k[1])
		}
	}
}

// If two originals have the same handle, which is very unlikely, the first stays.
func TestStoreKeepsTheFirstUnderAHandle(t *testing.T) {
	s, kind := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
	s.Put("alice", "h", []byte("first"))
	for _, other := range []string{"other", "firs", "", "first and more"} {
		if s.Put("alice", "h", []byte(other)) {
			t.Errorf("%q was kept", other)
		}
	}
	if !s.Put("bob", "h", []byte("other")) || !s.Put("alice", "h", []byte("first")) {
		t.Error("not kept")
	}
	for owner, want := range map[string]string{"alice": "first", "bob": "other"} {
		if got, ok := s.Get(owner, "h"); !ok || string(got) != want {
			t.Errorf("%s got %q, %v", owner, got, ok)
		}
	}
	if n := kind.Usage().Bytes; n != 10 {
		t.Errorf("%d bytes are kept", n)
	}
}

func TestGetFirst(t *testing.T) {
	s, _ := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
	s.Put("alice", "h", []byte("a"))
	s.Put("bob", "h", []byte("b"))
	for i, test := range []struct {
		owner     string
		first, ok bool
	}{{"alice", true, true}, {"alice", false, true}, {"bob", true, true}, {"carol", false, false}} {
		if _, first, ok := s.GetFirst(test.owner, "h"); first != test.first || ok != test.ok {
			t.Errorf("%d, %s: %t, %t", i, test.owner, first, ok)
		}
	}
	s.Put("alice", "h", []byte("a"))
	if _, first, _ := s.GetFirst("alice", "h"); first {
		t.Error("a renewed original counts as new")
	}
}

func TestStoreIsBounded(t *testing.T) {
	have := func(s *Store, n int) (kept string) {
		for i := range n {
			if _, ok := s.Get("", fmt.Sprint(i)); ok {
				kept += fmt.Sprint(i)
			}
		}
		return kept
	}
	s, _ := newStore(Limits{Entries: 3, Bytes: 1000, TTL: time.Minute})
	for i := range 5 {
		s.Put("", fmt.Sprint(i), []byte("x"))
	}
	if got := have(s, 5); got != "234" {
		t.Errorf("of 5 entries kept %s", got)
	}
	s, kind := newStore(Limits{Entries: 100, Bytes: 25, TTL: time.Minute})
	for i := range 5 {
		s.Put("", fmt.Sprint(i), bytes.Repeat([]byte("x"), 10))
	}
	s.Put("", "3", bytes.Repeat([]byte("x"), 10)) // renewed, not counted twice
	s.Put("", "5", bytes.Repeat([]byte("x"), 10))
	if got := have(s, 6); got != "35" || kind.Usage().Bytes != 20 {
		t.Errorf("of 6 entries kept %s, %d bytes", got, kind.Usage().Bytes)
	}
	if s.Put("", "huge", make([]byte, 26)) || have(s, 6) != "35" {
		t.Error("an original larger than the store was kept, or evicted others")
	}
}

func TestStoreKeepsOriginalsOfOtherOwners(t *testing.T) {
	s, _ := newStore(Limits{Entries: 10, Bytes: 1000, TTL: time.Minute})
	s.Put("bob", "b", []byte("b"))
	for i := range 100 {
		s.Put("alice", fmt.Sprint(i), []byte("x"))
	}
	if _, ok := s.Get("bob", "b"); !ok {
		t.Error("alice's originals evicted bob's")
	}
}

func TestStoreExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kind := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
		s.Put("", "a", []byte("a"))
		s.Put("", "b", []byte("b"))
		time.Sleep(40 * time.Second)
		s.Put("", "a", []byte("a")) // a repeated call renews
		time.Sleep(40 * time.Second)
		if _, ok := s.Get("", "b"); ok {
			t.Error("b has not expired")
		}
		if _, ok := s.Get("", "a"); !ok {
			t.Error("a was not renewed")
		}
		time.Sleep(20 * time.Second)
		if _, ok := s.Get("", "a"); ok || kind.Usage().Bytes != 0 {
			t.Error("a has not expired")
		}
		s.Put("", "c", []byte("c"))
		time.Sleep(2 * time.Minute)
		if s.Put("", "d", []byte("d")); kind.Usage().Bytes != 1 {
			t.Error("expired originals keep memory")
		}
	})
}

func TestStoreIsSafeForConcurrentUse(t *testing.T) {
	s, kind := newStore(Limits{Entries: 50, Bytes: 500, TTL: time.Minute})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				h := fmt.Sprint(i % 100)
				s.Put(fmt.Sprint(g), h, []byte(h))
				if got, ok := s.Get(fmt.Sprint(g), h); ok && string(got) != h {
					t.Errorf("got %q for %q", got, h)
				}
			}
		})
	}
	wg.Wait()
	if kind.Usage().Bytes > 500 || s.entries.Len() > 50 {
		t.Errorf("grew to %d bytes, %d entries", kind.Usage().Bytes, s.entries.Len())
	}
}

func TestHandle(t *testing.T) {
	form := regexp.MustCompile(`^obs_[A-Za-z0-9]{10}$`)
	seen := map[string]bool{}
	for _, handle := range []func(string, ...[]byte) string{Handles(nil).New, Handles("key").New, ContentHandle} {
		for _, parts := range [][][]byte{{[]byte("a")}, {[]byte("b")}, {[]byte("a"), []byte("b")}, {[]byte("ab")},
			{nil, []byte("ab")}} {
			h := handle("obs_", parts...)
			if !form.MatchString(h) || seen[h] || h != handle("obs_", parts...) {
				t.Errorf("%q: %q", parts, h)
			}
			seen[h] = true
			if after, ok := CutHandle([]byte(h+"0"), "obs_"); !ok || string(after) != "0" {
				t.Errorf("after %s comes %q, %t", h, after, ok)
			}
		}
	}
	for _, text := range []string{"", "obs_", "obs_012345678", "obs_012345678-", "Obs_0123456789"} {
		if after, ok := CutHandle([]byte(text), "obs_"); ok {
			t.Errorf("%q is taken for a handle, followed by %q", text, after)
		}
	}
}
