package mailbox

import "testing"

type text string

func (t text) Len() int { return len(t) }

func TestBox(t *testing.T) {
	put := func(t *testing.T, b *Box[text], l text, want bool) {
		t.Helper()
		if got := b.Put(l); got != want {
			t.Errorf("put %q: got %t, want %t", l, got, want)
		}
	}
	take := func(t *testing.T, b *Box[text], want text, wantLast bool) {
		t.Helper()
		if l, ok, last := b.Take(); l != want || ok != (want != "") || last != wantLast {
			t.Errorf("took %q, %t, last %t; want %q, last %t", l, ok, last, want, wantLast)
		}
	}
	t.Run("letters in order, with the last one at the end", func(t *testing.T) {
		b := New[text]("", 10)
		put(t, b, "a", true)
		put(t, b, "b", true)
		b.End("c")
		put(t, b, "d", false)
		for _, want := range []text{"a", "b", "c"} {
			<-b.More() // one signal per letter
			take(t, b, want, want == "c")
		}
	})
	t.Run("limit for a client that does not read", func(t *testing.T) {
		b := New[text]("", 2)
		put(t, b, "a", true)
		put(t, b, "b", true)
		put(t, b, "c", false)
		take(t, b, "a", false)
		put(t, b, "d", true)
	})
	t.Run("last letter is not counted", func(t *testing.T) {
		b := New[text]("", 2)
		put(t, b, "ab", true)
		b.End("answer")
		take(t, b, "ab", false)
		take(t, b, "answer", true)
	})
	t.Run("one letter of any size", func(t *testing.T) {
		b := New[text]("", 2)
		put(t, b, "long", true)
		put(t, b, "x", false)
		take(t, b, "long", false)
	})
	t.Run("limit for letters that may never be read", func(t *testing.T) {
		b := NewUnread[text]("", 2)
		put(t, b, "long", false)
		put(t, b, "ab", true)
		b.Join()
		take(t, b, "ab", false)
		put(t, b, "long", true)
		b.Join()
		if left := b.Leave(); len(left) != 0 || !b.HasReaders() {
			t.Errorf("%q remain", left)
		}
		if left := b.Leave(); len(left) != 1 || b.HasReaders() {
			t.Errorf("%q remain", left)
		}
		put(t, b, "ab", true)
	})
	t.Run("discarded box without a last letter", func(t *testing.T) {
		b := New[text]("", 10)
		put(t, b, "progress", true)
		if left := b.Discard(); len(left) != 1 || left[0] != "progress" {
			t.Errorf("%q remain", left)
		}
		<-b.More()
		take(t, b, "", true)
		put(t, b, "more", false)
	})
	t.Run("letters withdrawn before they are taken", func(t *testing.T) {
		b := New[text]("", 3)
		for _, l := range []text{"a", "q", "b"} {
			put(t, b, l, true)
		}
		for _, want := range []bool{true, false} {
			if got := b.Withdraw(func(l text) bool { return l == "q" }); got != want {
				t.Errorf("withdrawn: got %t, want %t", got, want)
			}
		}
		put(t, b, "c", true) // uses the space of the withdrawn letter
		for _, want := range []text{"a", "b", "c"} {
			take(t, b, want, false)
		}
	})
}

// budgeted returns a box that uses a budget.
func budgeted(owner string, shared budget) *Box[text] {
	b := New[text](owner, 16<<20)
	b.budget = shared
	return b
}

func TestUnreadLettersAreCounted(t *testing.T) {
	const size = 400 << 10
	small, long := text(make([]byte, uncounted)), text(make([]byte, size))
	end := func(t *testing.T, b *Box[text], l text, want bool) {
		t.Helper()
		if got := b.End(l); got != want {
			t.Errorf("end with %d bytes: got %t, want %t", l.Len(), got, want)
		}
	}
	holds := func(t *testing.T, entries, bytes int64) {
		t.Helper()
		if got := unread.Usage(); got.Entries != entries || got.Bytes != bytes {
			t.Errorf("%d entries of %d bytes, want %d of %d", got.Entries, got.Bytes, entries, bytes)
		}
	}
	t.Run("share of an owner that does not read", func(t *testing.T) {
		of := newBudget(1 << 20)
		defer of.Close()
		first, second, third := budgeted("alice", of), budgeted("alice", of), budgeted("bob", of)
		end(t, first, long, true)
		end(t, second, long, false)
		if second.Put(long) {
			t.Error("a letter that is not the last is not counted")
		}
		end(t, third, long, true)
		holds(t, 2, 2*(size-uncounted))
		first.Take()
		end(t, second, long, false) // the letter is still in use
		first.Done()
		end(t, second, long, true)
		second.Discard()
		third.Take()
		third.Take()
		holds(t, 0, 0)
	})
	t.Run("total of all owners", func(t *testing.T) {
		of := newBudget(1 << 20)
		defer of.Close()
		for _, owner := range []string{"a", "b", "c"} {
			end(t, budgeted(owner, of), long, true)
		}
		last := budgeted("d", of)
		end(t, last, long, false)
		end(t, last, small, true)
	})
	t.Run("small last letter always fits", func(t *testing.T) {
		of := newBudget(2 * (size - uncounted))
		defer of.Close()
		b := budgeted("alice", of)
		for _, l := range []text{long, ""} {
			if !b.Put(l) {
				t.Error("no room")
			}
		}
		end(t, budgeted("alice", of), long, false)
		end(t, b, small, true)
		for range 3 {
			b.Take()
		}
		b.Done()
		holds(t, 0, 0)
	})
	t.Run("one letter larger than the share", func(t *testing.T) {
		of := newBudget(1 << 20)
		defer of.Close()
		b := budgeted("alice", of)
		end(t, b, text(make([]byte, 2<<20)), true)
		end(t, budgeted("alice", of), long, false)
		b.Take()
		b.Done()
		end(t, budgeted("alice", of), long, true)
	})
	t.Run("removed letters are not counted", func(t *testing.T) {
		of := newBudget(10 << 20)
		defer of.Close()
		b := budgeted("alice", of)
		b.Put(long)
		b.Put(long + "x")
		b.Withdraw(func(l text) bool { return len(l) == size })
		holds(t, 1, size+1-uncounted)
		b.limit = size
		b.Leave()
		holds(t, 0, 0)
	})
}
