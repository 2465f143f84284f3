package tokens

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
)

// mergePiece returns the number of tokens of a piece. Each byte is a token at first. Then
// adjacent tokens are merged; the pair whose merged token is the lowest always comes first.
func mergePiece(piece string) int {
	switch {
	case len(piece) == 1:
		return 1
	case len(piece) <= maxLinearMerge:
		return mergeShort(piece)
	}
	return mergeLong(piece)
}

// maxLinearMerge is the length in bytes up to which a linear scan for each merge is fastest.
const maxLinearMerge = 32

func mergeShort(piece string) int {
	var tokens, merged [maxLinearMerge]uint32 // merged[i] is the token that i and i+1 merge to
	n := len(piece)
	last := uint32(piece[0])
	tokens[0] = last
	for i := 1; i < n; i++ {
		b := uint32(piece[i])
		tokens[i] = b
		merged[i-1] = findMerge(last, b)
		last = b
	}
	merged[n-1] = noToken
	for {
		lowest, at := uint32(noToken), 0
		for i, m := range merged[:n-1] {
			if m < lowest {
				lowest, at = m, i
			}
		}
		if lowest == noToken {
			return n
		}
		n--
		if n == 1 {
			return 1
		}
		tokens[at] = lowest
		copy(tokens[at+1:n], tokens[at+2:])
		copy(merged[at+1:n], merged[at+2:])
		if at > 0 {
			merged[at-1] = findMerge(tokens[at-1], lowest)
		}
		if at < n-1 {
			merged[at] = findMerge(lowest, tokens[at+1])
		} else {
			merged[at] = noToken
		}
	}
}

// window is how many bytes of a long piece are merged at once. The longest token has 128.
const window = 512

// mergeLong merges a piece in windows: time is linear in the length, and memory constant.
func mergeLong(piece string) int { return mergeByWindows(piece, window) }

// mergeByWindows merges a piece in windows of size bytes. The last quarter of a window is
// merged again with the next window. No token may be longer than three quarters.
//
// A sequence of tokens is the result of merging its text if the same holds for each pair of
// adjacent tokens. So two windows can be joined at a token that both contain: the first
// token of the second window. If the windows disagree on it, because the end of the first
// window cuts through the text, mergeByWindows starts again with windows twice as large.
func mergeByWindows(piece string, size int) int {
	m := mergers.Get().(*merger)
	defer m.release()

	start, count, joint := 0, 0, 0 // joint is the length of the shared token
	for start+size < len(piece) {
		m.merge(piece[start : start+size])
		if joint > 0 && m.length(0) != joint {
			return mergeByWindows(piece, 2*size)
		}
		i := 0
		for i+m.length(i) <= size*3/4 {
			i += m.length(i)
			count++
		}
		start += i
		joint = m.length(i)
	}

	m.merge(piece[start:])
	if joint > 0 && m.length(0) != joint {
		return mergeByWindows(piece, 2*size)
	}
	for i := start; i < len(piece); i += m.length(i - start) {
		count++
	}
	return count
}

// A merger merges long texts. Its slices have an element for each byte of the text. Only
// those of the first bytes of tokens are used.
type merger struct {
	tokens   []uint32
	previous []int32 // start of the previous token
	ends     []int32 // end of the token

	// Tree of minimums. A leaf is the token that a token and the next one merge to (upper
	// 32 bits), and its position (lower 32 bits). The children of i are 2i and 2i+1; the
	// second half of the slice is the leaves.
	lowest []uint64
}

var mergers = sync.Pool{New: func() any { return new(merger) }}

func (m *merger) release() {
	if cap(m.tokens) <= 2*window {
		mergers.Put(m)
	}
}

// length returns the length of the token that begins at i.
func (m *merger) length(i int) int { return int(m.ends[i]) - i }

func (m *merger) merge(text string) {
	n := len(text)
	leaves := 1 << bits.Len(uint(n-1))
	m.tokens = slices.Grow(m.tokens[:0], n)[:n]
	m.previous = slices.Grow(m.previous[:0], n)[:n]
	m.ends = slices.Grow(m.ends[:0], n)[:n]
	m.lowest = slices.Grow(m.lowest[:0], 2*leaves)[:2*leaves]

	for i := range n {
		m.tokens[i] = uint32(text[i])
		m.previous[i] = int32(i - 1)
		m.ends[i] = int32(i + 1)
	}
	for i := range leaves {
		m.lowest[leaves+i] = m.mergeAt(i)
	}
	for i := leaves - 1; i > 0; i-- {
		m.lowest[i] = min(m.lowest[2*i], m.lowest[2*i+1])
	}

	for m.lowest[1] != noMerge {
		token, i := uint32(m.lowest[1]>>32), int(uint32(m.lowest[1]))
		right := int(m.ends[i])
		end := int(m.ends[right])
		m.tokens[i], m.ends[i] = token, int32(end)
		if end < n {
			m.previous[end] = int32(i)
		}
		m.setLeaf(right, noMerge)
		m.setLeaf(i, m.mergeAt(i))
		if i > 0 {
			previous := int(m.previous[i])
			m.setLeaf(previous, m.mergeAt(previous))
		}
	}
}

// noMerge is the leaf of a token that cannot be merged with the next one.
const noMerge = 1<<64 - 1

// mergeAt returns the leaf of the token at i.
func (m *merger) mergeAt(i int) uint64 {
	n := len(m.tokens)
	if i >= n || int(m.ends[i]) == n {
		return noMerge
	}
	token := findMerge(m.tokens[i], m.tokens[m.ends[i]])
	if token == noToken {
		return noMerge
	}
	return uint64(token)<<32 | uint64(i)
}

// setLeaf replaces a leaf and updates its ancestors.
func (m *merger) setLeaf(leaf int, merged uint64) {
	i := len(m.lowest)/2 + leaf
	m.lowest[i] = merged
	for i >>= 1; i > 0; i >>= 1 {
		m.lowest[i] = min(m.lowest[2*i], m.lowest[2*i+1])
	}
}

// A Merge joins two adjacent tokens into one. The number of a token is its rank, or the
// byte itself for a single byte.
type Merge struct{ Left, Right, Token uint32 }

// The table of merges is a hash table, read in place from the binary. The 36 bits of a
// pair are permuted. The upper 16 bits select a bucket and the lower 20 are stored in it.
// The table is exact, because no two pairs agree in both.
//
//	65,537 × 2 bytes     start of each bucket, as the difference from evenStart
//	199,742 × 5 bytes    merges by bucket: 20 bits of the pair, 18 bits of the token
//	3 bytes              padding, so that each merge can be read as 8 bytes
const (
	tokenBits  = 18
	bucketBits = 16
	storedBits = 2*tokenBits - bucketBits

	mergeCount = 199_742 // all tokens except single bytes
	buckets    = 1 << bucketBits
	beginSize  = 2
	mergeSize  = 5
	padding    = 8 - mergeSize
	header     = (buckets + 1) * beginSize
)

// noToken is the result for tokens that cannot be merged. It is higher than all tokens.
const noToken = 1<<32 - 1

// fibonacci is the multiplier of Fibonacci hashing. It is odd, so different numbers have
// different products.
const fibonacci = 0x9e3779b97f4a7c15

// permute returns the bucket of a pair, and the bits of the pair to store there.
func permute(left, right uint32) (bucket int, stored uint64) {
	pair := uint64(left)<<tokenBits | uint64(right^left)
	pair = pair * fibonacci % (1 << (2 * tokenBits))
	return int(pair >> storedBits), pair % (1 << storedBits)
}

// findMerge returns the token that two adjacent tokens merge to, or noToken.
func findMerge(left, right uint32) uint32 {
	bucket, stored := permute(left, right)
	b := table[bucket*beginSize : bucket*beginSize+2*beginSize]
	at := bucketStart(bucket, uint16(b[0])|uint16(b[1])<<8)
	end := bucketStart(bucket+1, uint16(b[2])|uint16(b[3])<<8)
	for ; at < end; at += mergeSize {
		merge := load64(table, at)
		if merge%(1<<storedBits) == stored {
			return uint32(merge >> storedBits % (1 << tokenBits))
		}
	}
	return noToken
}

// bucketStart returns the offset of a bucket in the table.
func bucketStart(bucket int, deviation uint16) int {
	return header + mergeSize*(evenStart(bucket)+int(int16(deviation)))
}

// evenStart returns how many merges would precede a bucket if all buckets had the same size.
func evenStart(bucket int) int { return bucket * mergeCount >> bucketBits }

// load64 returns 8 bytes of a text as a little-endian number.
func load64(text string, i int) uint64 {
	b := text[i : i+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// Pack returns the table of merges, the content of o200k_base.merges.
func Pack(all []Merge) ([]byte, error) {
	if len(all) != mergeCount {
		return nil, fmt.Errorf("got %d merges, want %d", len(all), mergeCount)
	}
	type entry struct {
		bucket int
		merge  uint64
	}
	entries := make([]entry, len(all))
	for i, m := range all {
		if max(m.Left, m.Right, m.Token) >= 1<<tokenBits {
			return nil, fmt.Errorf("a token of merge %v does not fit into %d bits", m, tokenBits)
		}
		bucket, stored := permute(m.Left, m.Right)
		entries[i] = entry{bucket, uint64(m.Token)<<storedBits | stored}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(a.bucket-b.bucket, cmp.Compare(a.merge%(1<<storedBits), b.merge%(1<<storedBits)))
	})

	packed := make([]byte, 0, header+len(entries)*mergeSize+padding)
	for bucket, i := 0, 0; bucket <= buckets; bucket++ {
		for i < len(entries) && entries[i].bucket < bucket {
			i++
		}
		deviation := i - evenStart(bucket)
		if int(int16(deviation)) != deviation {
			return nil, errors.New("merges are not distributed evenly over the buckets")
		}
		packed = binary.LittleEndian.AppendUint16(packed, uint16(deviation))
	}
	for _, e := range entries {
		packed = append(binary.LittleEndian.AppendUint32(packed, uint32(e.merge)), byte(e.merge>>32))
	}
	return append(packed, make([]byte, padding)...), nil
}
