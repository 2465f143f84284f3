package chat

import "hash/maphash"

// symbols numbers texts: equal ones have the same number, and the numbers are
// dense. It is a hash table over the bytes it is given, so that a conversation
// of a thousand ids costs no allocation, where a map would copy each of them.
type symbols struct {
	texts [][]byte
	slots []int32 // a number plus one, or 0
	last  int32   // asked for, for what was asked for is often asked for again
}

var seed = maphash.MakeSeed()

// number returns the number of a text, which must stay as it is.
func (s *symbols) number(text []byte) int32 {
	if len(s.texts) > 0 && string(s.texts[s.last]) == string(text) {
		return s.last
	}
	if len(s.slots) < 2*(len(s.texts)+1) {
		s.grow()
	}
	slot := s.slot(text)
	if s.slots[slot] == 0 {
		s.texts = append(s.texts, text)
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

// cap returns how many texts and slots there is room for.
func (s *symbols) cap() int { return cap(s.texts) + cap(s.slots) }

// reset forgets all texts and keeps the room for others.
func (s *symbols) reset() {
	clear(s.texts)
	clear(s.slots)
	s.texts, s.last = s.texts[:0], 0
}
