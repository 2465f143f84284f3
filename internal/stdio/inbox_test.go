package stdio

import "testing"

func TestInbox(t *testing.T) {
	put := func(text string) letter { return letter{message: frame{[]byte(text)}} }
	take := func(t *testing.T, b *inbox, want string, wantLast bool) {
		t.Helper()
		l, _, last := b.take()
		equal(t, "message", l.message.text(), want)
		equal(t, "last", last, wantLast)
	}
	t.Run("messages come in order and the end after them", func(t *testing.T) {
		b := newInbox(10)
		b.put(put("a"))
		b.put(put("b"))
		b.end(put("c"))
		equal(t, "put after the end", b.put(put("d")), false)
		for _, want := range []string{"a", "b", "c"} {
			<-b.more // a wake-up for each
			take(t, b, want, want == "c")
		}
	})
	t.Run("who does not read gets no more than the limit", func(t *testing.T) {
		b := newInbox(2)
		equal(t, "a", b.put(put("a")), true)
		equal(t, "b", b.put(put("b")), true)
		equal(t, "c", b.put(put("c")), false)
		take(t, b, "a", false)
		equal(t, "d", b.put(put("d")), true)
	})
	t.Run("an answer does not count", func(t *testing.T) {
		b := newInbox(2)
		b.put(put("ab"))
		b.end(put("answer"))
		take(t, b, "ab", false)
		take(t, b, "answer", true)
	})
	t.Run("one message may be of any size", func(t *testing.T) {
		b := newInbox(2)
		equal(t, "long", b.put(put("long")), true)
		equal(t, "more", b.put(put("x")), false)
		take(t, b, "long", false)
	})
	t.Run("what is cancelled has no last message", func(t *testing.T) {
		b := newInbox(10)
		b.put(put("progress"))
		b.discard()
		<-b.more
		take(t, b, "", true)
	})
	t.Run("a question can be taken back until it is taken", func(t *testing.T) {
		b, q := newInbox(10), new(question)
		b.put(put("a"))
		b.put(letter{message: frame{[]byte("q")}, question: q})
		b.put(put("b"))
		equal(t, "withdrawn", b.withdraw(q), true)
		equal(t, "again", b.withdraw(q), false)
		take(t, b, "a", false)
		take(t, b, "b", false)
		equal(t, "size", b.size, 0)
	})
}
