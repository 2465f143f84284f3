package catalog

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Equal lists are stored once, for a limited time. Their size per server is limited.
func TestShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShelf()
		defer s.Close()
		build := func(text string) *List {
			return &List{Joined: []byte(text), Ends: []int{len(text)}, Names: []string{"x"}}
		}
		key, a := s.Put("a", build(`{"a":1}`))
		if again, b := s.Put("a", build(`{"a":1}`)); a != b || again != key || s.Get(key) != a {
			t.Error("equal lists are stored twice")
		}
		if _, b := s.Put("b", build(`{"a":1}`)); a == b {
			t.Error("servers share a list")
		}
		if _, c := s.Put("a", build(`{"a":2}`)); a == c {
			t.Error("different lists are stored as one")
		}
		short := build(`{"a":1}`)
		short.Short = map[string]string{short.Names[0]: "other"}
		if _, d := s.Put("a", short); d == a {
			t.Error("lists with different short names are stored as one")
		}
		large := strings.Repeat(" ", 16<<20)
		for i := range 10 {
			s.Put("hostile", build(fmt.Sprint(large, i)))
		}
		if held := listsQuota.Usage().Bytes; held > maxServerLists+1<<10 {
			t.Errorf("%d bytes are stored", held)
		}
		if s.Get(key) != a {
			t.Error("another server evicted the list")
		}
		time.Sleep(listTime + time.Minute)
		if n := s.Expire(); n > 0 || s.Get(key) != nil {
			t.Errorf("%d lists are stored", n)
		}
	})
}
