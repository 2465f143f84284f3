package tokens

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

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
