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
	t.Run("letters come in order and the end after them", func(t *testing.T) {
		b := New[text](10)
		put(t, b, "a", true)
		put(t, b, "b", true)
		b.End("c")
		put(t, b, "d", false)
		for _, want := range []text{"a", "b", "c"} {
			<-b.More() // a wake-up for each
			take(t, b, want, want == "c")
		}
	})
	t.Run("who does not read gets no more than the limit", func(t *testing.T) {
		b := New[text](2)
		put(t, b, "a", true)
		put(t, b, "b", true)
		put(t, b, "c", false)
		take(t, b, "a", false)
		put(t, b, "d", true)
	})
	t.Run("the last letter does not count", func(t *testing.T) {
		b := New[text](2)
		put(t, b, "ab", true)
		b.End("answer")
		take(t, b, "ab", false)
		take(t, b, "answer", true)
	})
	t.Run("one letter may be of any size", func(t *testing.T) {
		b := New[text](2)
		put(t, b, "long", true)
		put(t, b, "x", false)
		take(t, b, "long", false)
	})
	t.Run("what may never be read is not large", func(t *testing.T) {
		b := NewUnread[text](2)
		put(t, b, "long", false)
		put(t, b, "ab", true)
		b.Join()
		take(t, b, "ab", false)
		put(t, b, "long", true)
		b.Join()
		if left := b.Leave(); len(left) != 0 || !b.HasReaders() {
			t.Errorf("left are %q", left)
		}
		if left := b.Leave(); len(left) != 1 || b.HasReaders() {
			t.Errorf("left are %q", left)
		}
		put(t, b, "ab", true)
	})
	t.Run("what is discarded has no last letter", func(t *testing.T) {
		b := New[text](10)
		put(t, b, "progress", true)
		if left := b.Discard(); len(left) != 1 || left[0] != "progress" {
			t.Errorf("left are %q", left)
		}
		<-b.More()
		take(t, b, "", true)
		put(t, b, "more", false)
	})
	t.Run("a letter can be withdrawn until it is taken", func(t *testing.T) {
		b := New[text](3)
		for _, l := range []text{"a", "q", "b"} {
			put(t, b, l, true)
		}
		for _, want := range []bool{true, false} {
			if got := b.Withdraw(func(l text) bool { return l == "q" }); got != want {
				t.Errorf("withdrawn: got %t, want %t", got, want)
			}
		}
		put(t, b, "c", true) // in the room that it has left
		for _, want := range []text{"a", "b", "c"} {
			take(t, b, want, false)
		}
	})
}
