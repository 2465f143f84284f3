package replicas_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

const piece = 256 << 10

// random returns size random bytes.
func random(size int) []byte {
	value := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(value)
	return value
}

func TestEntriesInPieces(t *testing.T) {
	for _, test := range []struct{ size, pieces int }{
		{0, 1}, {1, 1}, {piece - 1, 1}, {piece, 1}, {piece + 1, 2}, {5 * piece, 5}, {9*piece + 7, 10}, {30 << 20, 120},
	} {
		t.Run(fmt.Sprint(test.size), func(t *testing.T) {
			engine := replicastest.New()
			a, b := replicastest.Replica(t, engine).Space("s"), replicastest.Replica(t, engine).Space("s")
			value := random(test.size)
			if err := a.Keep(t.Context(), "owner", "name", value, time.Hour); err != nil {
				t.Fatal(err)
			}
			if n := len(engine.Values()); n != test.pieces {
				t.Errorf("%d pieces", n)
			}
			before := engine.Operations.Load()
			got, err := b.Find(t.Context(), "owner", "name")
			if err != nil || got == nil || !bytes.Equal(got, value) {
				t.Errorf("found %d bytes, %v", len(got), err)
			}
			if n := engine.Operations.Load() - before; int(n) > 1+(test.pieces+2)/4 {
				t.Errorf("%d operations to read %d pieces", n, test.pieces)
			}
			for _, other := range [][2]string{{"owner", "other"}, {"other", "name"}} {
				if got, err := b.Find(t.Context(), other[0], other[1]); got != nil || err != nil {
					t.Errorf("%s found %d bytes, %v", other, len(got), err)
				}
			}
		})
	}
}

// A value is lost if one of its pieces is missing or belongs to another value.
func TestIncompleteEntries(t *testing.T) {
	for i := range 3 {
		engine := replicastest.New()
		space := replicastest.Replica(t, engine).Space("s")
		if err := space.Keep(t.Context(), "owner", "name", random(3*piece), time.Hour); err != nil {
			t.Fatal(err)
		}
		kept := engine.Values()
		if err := space.Keep(t.Context(), "owner", "name", random(3 * piece)[1:], time.Hour); err != nil {
			t.Fatal(err)
		}
		for key := range kept {
			if !strings.HasSuffix(key, fmt.Sprint(":", i)) {
				continue
			}
			if err := engine.Set(t.Context(), key, kept[key], time.Hour); err != nil {
				t.Fatal(err)
			}
			if got, err := space.Find(t.Context(), "owner", "name"); got != nil || err != nil {
				t.Errorf("with piece %d of another value: found %d bytes, %v", i, len(got), err)
			}
			if _, err := engine.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := space.Find(t.Context(), "owner", "name"); got != nil || err != nil {
			t.Errorf("without piece %d: found %d bytes, %v", i, len(got), err)
		}
	}
}

func TestEntriesOfSeveralOwners(t *testing.T) {
	engine := replicastest.New()
	space := replicastest.Replica(t, engine).Space("s")
	for _, owner := range []string{"b", "c"} {
		if err := space.Keep(t.Context(), owner, "name", []byte("of "+owner), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	owner, got, err := space.FindAny(t.Context(), []string{"a", "b", "c"}, "name")
	if owner != "b" || string(got) != "of b" || err != nil {
		t.Errorf("found %q of %q, %v", got, owner, err)
	}
	if owner, got, err := space.FindAny(t.Context(), []string{"a", "d"}, "name"); got != nil || err != nil {
		t.Errorf("found %q of %q, %v", got, owner, err)
	}
}

// An owner cannot exceed its quota, and loses its oldest entries. Other owners lose nothing.
func TestEntriesAreLimited(t *testing.T) {
	engine := replicastest.New()
	config := settings(t)
	config.OwnerBytes = 10 * piece
	store := replicas.Open(engine, config)
	defer store.Close()
	space := store.Space("s")
	keep := func(owner, name string, size int) error {
		return space.Keep(t.Context(), owner, name, random(size), time.Hour)
	}
	for _, e := range [][2]string{{"bob", "0"}, {"alice", "0"}, {"alice", "1"}, {"alice", "2"}} {
		if err := keep(e[0], e[1], 3*piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := keep("alice", "huge", 10*piece+1); !errors.Is(err, replicas.ErrFull) {
		t.Errorf("value over the quota: %v", err)
	}
	if err := keep("alice", "3", 3*piece); err != nil {
		t.Fatal(err)
	}
	for key, there := range map[[2]string]bool{
		{"bob", "0"}: true, {"alice", "0"}: false, {"alice", "2"}: true, {"alice", "3"}: true, {"alice", "huge"}: false,
	} {
		if got, err := space.Find(t.Context(), key[0], key[1]); err != nil || (got != nil) != there {
			t.Errorf("%s: %d bytes, %v", key, len(got), err)
		}
	}
}

// Entries that clients share are found without the names of clients. A client can evict only its
// own entries.
func TestEntriesOfClients(t *testing.T) {
	config := settings(t)
	config.OwnerBytes = 10 * piece
	store := replicas.Open(replicastest.New(), config)
	defer store.Close()
	space := store.Space("s")
	for i, client := range []string{"bob", "alice", "alice", "alice", "alice"} {
		if err := space.KeepForClient(t.Context(), client, "server", fmt.Sprint(i), random(3*piece), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for i, there := range []bool{true, false, true, true, true} {
		if found(t, space, "server", fmt.Sprint(i)) != there {
			t.Errorf("entry %d exists: %t", i, !there)
		}
	}
}
