package tokens

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// A Merge joins two adjacent tokens to one. The token of a single byte is the byte
// itself; other tokens are their ranks.
type Merge struct{ Left, Right, Token uint32 }

// The table of merges is a hash table that is read where the linker has put it. The 36
// bits of a pair are permuted. The upper bits of the result number a bucket, the lower
// ones are stored, so the table is exact: no other pair has both the same.
//
//	65,537 × 2 bytes   where each bucket begins, less where it would if all were alike
//	merges × 5 bytes   by bucket: 20 bits of the pair, 18 bits of the token
//	3 bytes            so that each merge can be read as 8 bytes
const (
	tokenBits  = 18
	bucketBits = 16
	storedBits = 2*tokenBits - bucketBits

	merges    = 199_742 // all tokens but those of single bytes
	buckets   = 1 << bucketBits
	beginSize = 2
	mergeSize = 5
	padding   = 8 - mergeSize
	header    = (buckets + 1) * beginSize
)

// none is the token of two tokens that cannot be merged. It is above all others.
const none = 1<<32 - 1

// fibonacci spreads what it is multiplied with. It is odd, so no two products are the
// same.
const fibonacci = 0x9e3779b97f4a7c15

// permute returns the bucket of a pair, and what of the pair is stored there.
func permute(left, right uint32) (bucket int, stored uint64) {
	pair := uint64(left)<<tokenBits | uint64(right^left)
	pair = pair * fibonacci % (1 << (2 * tokenBits))
	return int(pair >> storedBits), pair % (1 << storedBits)
}

// find returns the token that two adjacent tokens can be merged to, or none.
func find(left, right uint32) uint32 {
	bucket, stored := permute(left, right)
	b := table[bucket*beginSize : bucket*beginSize+2*beginSize]
	at := begin(bucket, uint16(b[0])|uint16(b[1])<<8)
	end := begin(bucket+1, uint16(b[2])|uint16(b[3])<<8)
	for ; at < end; at += mergeSize {
		merge := load(table, at)
		if merge%(1<<storedBits) == stored {
			return uint32(merge >> storedBits % (1 << tokenBits))
		}
	}
	return none
}

// begin returns where a bucket begins in the table.
func begin(bucket int, deviation uint16) int {
	return header + mergeSize*(alike(bucket)+int(int16(deviation)))
}

// alike returns how many merges there are before a bucket if each has the same number.
func alike(bucket int) int { return bucket * merges >> bucketBits }

// load returns 8 bytes of a text as a number.
func load(text string, i int) uint64 {
	b := text[i : i+8]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// Pack returns the table of merges.
func Pack(all []Merge) ([]byte, error) {
	if len(all) != merges {
		return nil, fmt.Errorf("%d merges, want %d", len(all), merges)
	}
	type entry struct {
		bucket int
		merge  uint64
	}
	entries := make([]entry, len(all))
	for i, m := range all {
		if max(m.Left, m.Right, m.Token) >= 1<<tokenBits {
			return nil, fmt.Errorf("%v does not fit into %d bits", m, tokenBits)
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
		deviation := i - alike(bucket)
		if int(int16(deviation)) != deviation {
			return nil, errors.New("pairs are not spread evenly")
		}
		packed = binary.LittleEndian.AppendUint16(packed, uint16(deviation))
	}
	for _, e := range entries {
		packed = append(binary.LittleEndian.AppendUint32(packed, uint32(e.merge)), byte(e.merge>>32))
	}
	return append(packed, make([]byte, padding)...), nil
}
