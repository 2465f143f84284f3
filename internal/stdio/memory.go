package stdio

import (
	"math/bits"
	"sync"
)

// A block is memory for a message. Blocks are reused, because fresh memory for each response
// would keep the garbage collector busy: a response can have megabytes.
type block struct{ bytes []byte }

const (
	smallest = 512     // bytes of the smallest block
	largest  = 8 << 20 // bytes of the largest block that is reused
)

// blocks are the free blocks by size. There are four sizes from each power of two to the next,
// so a block is at most a quarter larger than needed.
var blocks [60]sync.Pool

// sizeClass returns the size of blocks for a number of bytes, and their index in blocks.
func sizeClass(bytes int) (class, size int) {
	bytes = max(bytes, smallest)
	power := bits.Len(uint(bytes - 1))
	quarter := 1 << (power - 3) // a quarter of the power of two below
	quarters := (bytes + quarter - 1) / quarter
	return 4*(power-bits.Len(smallest-1)) + quarters - 5, quarters * quarter
}

// newBlock returns a block of at least this many bytes. Its content is undefined.
func newBlock(bytes int) *block {
	if bytes > largest {
		return &block{make([]byte, bytes)}
	}
	class, size := sizeClass(bytes)
	if b, ok := blocks[class].Get().(*block); ok {
		return b
	}
	return &block{make([]byte, size)}
}

// free makes a block available again. A block that is not freed is left to the garbage
// collector.
func (b *block) free() {
	if b != nil && len(b.bytes) <= largest {
		class, _ := sizeClass(len(b.bytes))
		blocks[class].Put(b)
	}
}
