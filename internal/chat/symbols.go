package chat

import "hash/maphash"

// symbols numbers texts: equal ones have the same number, and the numbers are
// dense. It is a hash table over the bytes it is given, so that a conversation
// of a thousand ids costs no allocation, where a map would copy each of them.
type symbols struct {
	texts   [][]byte
	spelled []value // where each of these stands first
	slots   []int32 // a number plus one, or 0
	last    int32   // asked for, for what was asked for is often asked for again
}

var seed = maphash.MakeSeed()

// number returns the number of a text, which must stay as it is and stands at v.
func (s *symbols) number(text []byte, v value) int32 {
	if len(s.texts) > 0 && string(s.texts[s.last]) == string(text) {
		return s.last
	}
	if len(s.slots) < 2*(len(s.texts)+1) {
		s.grow()
	}
	slot := s.slot(text)
	if s.slots[slot] == 0 {
		s.texts, s.spelled = append(s.texts, text), append(s.spelled, v)
		s.slots[slot] = int32(len(s.texts))
	}
	s.last = s.slots[slot] - 1
	return s.last
}

// slot returns where a text stands, or the free place where it would.
func (s *symbols) slot(text []byte) int {
	mask := len(s.slots) - 1
	i := int(maphash.Bytes(seed, text)) & mask
	for s.slots[i] != 0 && string(s.texts[s.slots[i]-1]) != string(text) {
		i = (i + 1) & mask
	}
	return i
}

func (s *symbols) grow() {
	s.slots = make([]int32, max(64, 2*len(s.slots)))
	for i, text := range s.texts {
		s.slots[s.slot(text)] = int32(i) + 1
	}
}

// bytes returns how much memory the symbols take.
func (s *symbols) bytes() int { return sizeOf(s.texts) + sizeOf(s.spelled) + sizeOf(s.slots) }

// reset forgets all texts and keeps the room for others.
func (s *symbols) reset() {
	clear(s.texts)
	clear(s.slots)
	s.texts, s.spelled, s.last = s.texts[:0], s.spelled[:0], 0
}

// release forgets the texts but not where they stand.
func (s *symbols) release() {
	clear(s.texts)
	s.texts, s.last = s.texts[:0], 0
}

// restore makes the symbols the first n they were before they were released, in a body
// that is the same as far as these go.
func (s *symbols) restore(n int, text func(value) []byte) {
	s.spelled = s.spelled[:n]
	for _, v := range s.spelled {
		s.texts = append(s.texts, text(v))
	}
	// Without the last that were put there, the slots are as they were before these.
	for i, number := range s.slots {
		if int(number) > n {
			s.slots[i] = 0
		}
	}
}
