package replicas

import (
	"context"
	"errors"
	"time"
)

// An Engine keeps values that all replicas see, and carries messages between them. It is safe for
// concurrent use.
//
// Keys and topics are short and have no characters but letters, digits and -_:{}. What is between braces
// is the same for keys that are used together: an Engine that spreads its keys over machines keeps them
// on one. Values and messages are any bytes.
//
// An operation that cannot be carried out for lack of room fails with [ErrFull]. Any other error means
// that the Engine cannot be used now.
type Engine interface {
	// Get returns the values of keys, nil for a key that has none.
	Get(ctx context.Context, keys ...string) (values [][]byte, err error)

	// Set gives a key a value for a while.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) error

	// Swap gives a key another value, if it has the old one. An old value of nil means that it has none,
	// a new one of nil that it has none afterwards. A ttl of 0 is forever.
	Swap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (swapped bool, err error)

	// Delete removes a key, and reports whether it had a value. Of several callers, one gets true.
	Delete(ctx context.Context, key string) (deleted bool, err error)

	// Keep gives a key a value as one of an owner, who loses those of its entries that would end first if
	// it has more bytes than it may have. An Engine may count what an entry takes besides its value.
	Keep(ctx context.Context, e Entry) error

	// Spend takes tokens from each of the buckets, or from none. It takes as many whole tokens as a bucket
	// has, but not more than are wanted. If one bucket has less than one, it returns how long to wait until
	// it has. All buckets have the same owner.
	Spend(ctx context.Context, buckets []Bucket) (taken []float64, wait time.Duration, err error)

	// Publish sends a message to all who have subscribed to a topic, and reports whether anyone has.
	Publish(ctx context.Context, topic string, message []byte) (heard bool, err error)

	// Subscribe calls f with each message to a topic that is published after it returns, one after the
	// other, until stop is called. f must not block. After the connection was lost, it is subscribed again,
	// and f is called with nil: what was published meanwhile is lost.
	Subscribe(ctx context.Context, topic string, f func(message []byte)) (stop func(), err error)

	// Close releases what the Engine holds.
	Close()
}

// An Entry is a value of an owner.
type Entry struct {
	Owner      string // a key, too
	Key        string
	Value      []byte
	TTL        time.Duration
	OwnerBytes int64 // that all entries of the owner may have together
}

// A Bucket fills with tokens at a rate, up to its burst.
type Bucket struct {
	Key   string
	Rate  float64 // in tokens per second
	Burst float64
	Want  float64 // 0 only asks whether there is a token; a negative number gives tokens back
}

var (
	// ErrFull says that the store has no room.
	ErrFull = errors.New("the shared store is full")
	// ErrUnavailable says that the store cannot be used now.
	ErrUnavailable = errors.New("the shared store is unavailable")
)
