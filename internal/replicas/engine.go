package replicas

import (
	"context"
	"errors"
	"time"
)

// An Engine stores values that all replicas see, and sends messages between replicas. It is safe
// for concurrent use.
//
// Keys and topics are short, of letters, digits and -_:{}. Keys that are used together have the
// same text between braces: an Engine that distributes its keys over machines keeps them on the
// same one. Values and messages are any bytes.
//
// An operation that fails for lack of space returns [ErrFull]. Any other error means that the
// Engine is unavailable.
type Engine interface {
	// Get returns the values of keys, nil for a key without one.
	Get(ctx context.Context, keys ...string) (values [][]byte, err error)

	// Set sets the value of a key for a time.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) error

	// Swap replaces the value of a key if it has the old one. A nil old value means that the key
	// must not exist, a nil new value deletes it. A ttl of 0 is forever.
	Swap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (swapped bool, err error)

	// Delete deletes a key, and reports whether it existed. Only one of several callers gets true.
	Delete(ctx context.Context, key string) (deleted bool, err error)

	// Keep sets the value of a key as an entry of an owner. If the owner then has more than
	// OwnerBytes, it loses the entries that expire first. An Engine may also count the overhead of
	// an entry.
	Keep(ctx context.Context, e Entry) error

	// Spend takes tokens from all buckets, or from none. It takes as many whole tokens as a bucket
	// has, up to Want. If a bucket has less than one, Spend returns how long to wait until it has
	// one. All buckets have the same owner.
	Spend(ctx context.Context, buckets []Bucket) (taken []float64, wait time.Duration, err error)

	// Publish sends a message to all subscribers of a topic, and reports whether there are any.
	Publish(ctx context.Context, topic string, message []byte) (received bool, err error)

	// Subscribe calls f with each message that is published to a topic after it returns, one after
	// the other, until stop is called. f must not block. After a lost connection it subscribes
	// again and calls f with nil, because messages may have been lost.
	Subscribe(ctx context.Context, topic string, f func(message []byte)) (stop func(), err error)

	// Close releases the resources of the Engine.
	Close()
}

// An Entry is a value of an owner.
type Entry struct {
	Owner      string // key of the owner
	Key        string
	Value      []byte
	TTL        time.Duration
	OwnerBytes int64 // limit for all entries of the owner
}

// A Bucket fills with tokens at a rate, up to its burst.
type Bucket struct {
	Key   string
	Rate  float64 // tokens per second
	Burst float64
	Want  float64 // tokens to take; 0 only checks for a token, a negative number returns tokens
}

var (
	// ErrFull reports that the store has no space.
	ErrFull = errors.New("the shared store is full")
	// ErrUnavailable reports that the store cannot be used now.
	ErrUnavailable = errors.New("the shared store is unavailable")
)
