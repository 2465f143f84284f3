package stdio

import (
	"math/bits"
	"sync"
)

// A block is memory for a long message. Blocks are used again, because fresh memory for each
// answer would keep the garbage collector busy: an answer can have megabytes.
type block struct{ bytes []byte }

const (
	smallest = 64 << 10 // bytes of a block
	largest  = 8 << 20  // bytes of a block that is used again
)

// blocks are the free blocks. Those at n have smallest<<n bytes.
var blocks [8]sync.Pool

// sizeClass returns where in blocks those of so many bytes are.
func sizeClass(size int) int { return bits.Len(uint(max(size, smallest)-1) / smallest) }

// newBlock returns a block of at least so many bytes, which can have any content.
func newBlock(size int) *block {
	if size > largest {
		return &block{make([]byte, size)}
	}
	class := sizeClass(size)
	if b, ok := blocks[class].Get().(*block); ok {
		return b
	}
	return &block{make([]byte, smallest<<class)}
}

// free says that a block is no longer used. A block that is lost instead is left to the garbage
// collector.
func (b *block) free() {
	if b != nil && len(b.bytes) <= largest {
		blocks[sizeClass(len(b.bytes))].Put(b)
	}
}
