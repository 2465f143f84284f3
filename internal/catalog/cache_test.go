package catalog

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
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

// A failed attempt to fetch a list does not make the last one fresh.
func TestFailuresKeepTheAgeOfAList(t *testing.T) {
	c := NewCache([mcp.ListKindCount]int{})
	c.Keep(mcp.Tools, Cached{Key: Key{1}, At: time.Now().Add(-time.Hour)})
	began := time.Now()
	c.NoteFailure(mcp.Tools, jsonrpc.Timeout("a"))
	for who, began := range map[string]time.Time{"waits for the attempt": began, "is new": time.Now().Add(time.Second)} {
		if _, _, ok := c.Valid(mcp.Tools, "", began, true); ok {
			t.Errorf("a client that %s gets the list of an hour ago", who)
		}
		if _, failure := c.BeginFetch(mcp.Tools, began); failure == nil {
			t.Errorf("a client that %s tries again at once", who)
		}
	}
}
