package stdio

import (
	"math/bits"
	"sync"
)

// A block is memory for a message. Blocks are used again, because fresh memory for each
// answer would keep the garbage collector busy: an answer can have megabytes.
type block struct{ bytes []byte }

const (
	smallest = 512     // bytes of a block
	largest  = 8 << 20 // bytes of a block that is used again
)

// blocks are the free blocks, by size: there are four sizes from each power of two to the next, so
// that a block has at most a quarter more than is needed.
var blocks [60]sync.Pool

// sizeClass returns the size of the blocks for so many bytes, and where in blocks they are.
func sizeClass(bytes int) (class, size int) {
	bytes = max(bytes, smallest)
	power := bits.Len(uint(bytes - 1))
	quarter := 1 << (power - 3) // of the power of two below
	quarters := (bytes + quarter - 1) / quarter
	return 4*(power-bits.Len(smallest-1)) + quarters - 5, quarters * quarter
}

// newBlock returns a block of at least so many bytes, which can have any content.
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

// free says that a block is no longer used. A block that is lost instead is left to the garbage
// collector.
func (b *block) free() {
	if b != nil && len(b.bytes) <= largest {
		class, _ := sizeClass(len(b.bytes))
		blocks[class].Put(b)
	}
}
