package chat

import "hash/maphash"

// symbols numbers texts: equal texts have the same number, and numbers are dense. It is a hash
// table over the bytes it is given, so that a conversation with a thousand ids needs no
// allocations. A map would copy each of them.
type symbols struct {
	texts     [][]byte
	positions []value // position of the first occurrence of each text
	slots     []int32 // number plus one, or 0
	last      int32   // last result, because lookups often repeat
}

var seed = maphash.MakeSeed()

// number returns the number of a text, which must not change and is at v.
func (s *symbols) number(text []byte, v value) int32 {
	if len(s.texts) > 0 && string(s.texts[s.last]) == string(text) {
		return s.last
	}
	if len(s.slots) < 2*(len(s.texts)+1) {
		s.grow()
	}
	slot := s.slot(text)
	if s.slots[slot] == 0 {
		s.texts, s.positions = append(s.texts, text), append(s.positions, v)
		s.slots[slot] = int32(len(s.texts))
	}
	s.last = s.slots[slot] - 1
	return s.last
}

// slot returns the index of a text, or the free slot for it.
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
func (s *symbols) bytes() int { return sizeOf(s.texts) + sizeOf(s.positions) + sizeOf(s.slots) }

// reset removes all texts and keeps the memory.
func (s *symbols) reset() {
	clear(s.texts)
	clear(s.slots)
	s.texts, s.positions, s.last = s.texts[:0], s.positions[:0], 0
}

// release drops the texts but not their positions.
func (s *symbols) release() {
	clear(s.texts)
	s.texts, s.last = s.texts[:0], 0
}

// restore restores the first n symbols after release, in a body that has them at the same
// positions.
func (s *symbols) restore(n int, text func(value) []byte) {
	s.positions = s.positions[:n]
	for _, v := range s.positions {
		s.texts = append(s.texts, text(v))
	}
	// Removing the last added texts leaves the slots as they were before.
	for i, number := range s.slots {
		if int(number) > n {
			s.slots[i] = 0
		}
	}
}
