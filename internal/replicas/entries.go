package replicas

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Large values are stored in pieces, so that none of them blocks the engine for long. Each piece is
// an entry. The first one contains the number of pieces, and is written last.

const (
	pieceSize = 256 << 10
	maxPieces = 4096 // 1 GiB
	sumSize   = 8
	pieceCost = 512 // maximum overhead of a piece in bytes

	readAtOnce = 4 // pieces in one operation
	maxReading = 4 // values of several pieces that are read at once
)

// pieceKey returns the key of a piece in the engine.
func (s *Space) pieceKey(owner, name string, i int) string {
	return s.key(owner, name) + ":" + strconv.Itoa(i)
}

// Keep stores a value of an owner. An owner with too many bytes loses its oldest values.
func (s *Space) Keep(ctx context.Context, owner, name string, value []byte, ttl time.Duration) error {
	return s.keep(ctx, owner, "", name, value, ttl)
}

// KeepForClient stores a value of an owner that counts for a client. A client with too many bytes
// loses its oldest values of that owner. The owner and the name are enough to find the value.
func (s *Space) KeepForClient(ctx context.Context, client, owner, name string, value []byte, ttl time.Duration) error {
	return s.keep(ctx, owner, s.hash("client", client), name, value, ttl)
}

// keep stores a value of an owner that counts for a part of the owner.
func (s *Space) keep(ctx context.Context, owner, part, name string, value []byte, ttl time.Duration) error {
	pieces := slices.Collect(slices.Chunk(value, pieceSize))
	if len(pieces) == 0 {
		pieces = [][]byte{nil}
	}
	if len(pieces) > maxPieces || int64(len(value)+len(pieces)*pieceCost) > s.config.OwnerBytes {
		return ErrFull
	}
	sum := sha256.Sum256(value)
	head := binary.AppendUvarint(sum[:sumSize:sumSize], uint64(len(pieces)))
	for i, piece := range slices.Backward(pieces) {
		key := s.pieceKey(owner, name, i)
		e := Entry{
			Owner: s.config.Prefix + "{" + s.hash("owner", owner) + "}" + part, Key: key,
			Value: s.sealer.SealBytes(key, slices.Concat(head, piece)), TTL: ttl, OwnerBytes: s.config.OwnerBytes,
		}
		if err := s.do(ctx, "keep", func(ctx context.Context) error { return s.engine.Keep(ctx, e) }); err != nil {
			return err
		}
	}
	return nil
}

// KeepLater queues a Keep. The value is lost if the queue is full. The caller must not change it.
func (s *Space) KeepLater(owner, name string, value []byte, ttl time.Duration) {
	keep := func(ctx context.Context) error { return s.Keep(ctx, owner, name, value, ttl) }
	s.WriteLater(owner, name, len(value), keep, nil)
}

// WriteLater queues a write of a value of a number of bytes. It calls lost, which must not block,
// if write fails, or is not called because the queue is full.
func (s *Space) WriteLater(owner, name string, bytes int, write func(context.Context) error, lost func()) {
	s.queue.add(writeKey{s.name, owner, name}, int64(bytes), queuedWrite{write, lost})
}

// Find returns a value of an owner, or nil.
func (s *Space) Find(ctx context.Context, owner, name string) (value []byte, err error) {
	_, value, err = s.FindAny(ctx, []string{owner}, name)
	return value, err
}

// FindAny returns the value of the first of the owners that has one, or nil.
func (s *Space) FindAny(ctx context.Context, owners []string, name string) (owner string, value []byte, err error) {
	first, errs := make([][]*piece, len(owners)), make([]error, len(owners))
	var asking sync.WaitGroup // in parallel, because they may be on several machines
	for i, owner := range owners {
		asking.Go(func() { first[i], errs[i] = s.readPieces(ctx, []string{s.pieceKey(owner, name, 0)}) })
	}
	asking.Wait()
	for i, pieces := range first {
		if pieces == nil || pieces[0] == nil {
			continue
		}
		value, errs[i] = s.readRest(ctx, owners[i], name, pieces[0])
		if value != nil {
			return owners[i], value, nil
		}
	}
	return "", nil, errors.Join(errs...)
}

// readRest returns the value that begins with a piece, or nil if a piece is missing.
func (s *Space) readRest(ctx context.Context, owner, name string, first *piece) ([]byte, error) {
	if first.count == 1 {
		return first.text, nil
	}
	select {
	case s.largeReads <- struct{}{}:
		defer func() { <-s.largeReads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	value := slices.Grow(first.text, (first.count-1)*pieceSize)
	keys := make([]string, 0, first.count-1)
	for i := 1; i < first.count; i++ {
		keys = append(keys, s.pieceKey(owner, name, i))
	}
	for some := range slices.Chunk(keys, readAtOnce) {
		pieces, err := s.readPieces(ctx, some)
		if err != nil {
			return nil, err
		}
		for _, p := range pieces {
			if p == nil || p.sum != first.sum {
				return nil, nil
			}
			value = append(value, p.text...)
		}
	}
	return value, nil
}

// A piece is a part of a value.
type piece struct {
	sum   string // checksum of the value
	count int    // pieces of the value
	text  []byte // not nil
}

// readPieces returns the pieces of keys, nil for missing ones.
func (s *Space) readPieces(ctx context.Context, keys []string) ([]*piece, error) {
	var sealed [][]byte
	err := s.do(ctx, "get", func(ctx context.Context) (err error) {
		sealed, err = s.engine.Get(ctx, keys...)
		return err
	})
	if err != nil {
		return nil, err
	}
	pieces := make([]*piece, len(keys))
	for i, key := range keys {
		plain, ok := s.sealer.OpenBytes(key, sealed[i])
		if !ok || len(plain) <= sumSize {
			continue
		}
		count, n := binary.Uvarint(plain[sumSize:])
		if n > 0 && count > 0 && count <= maxPieces {
			pieces[i] = &piece{string(plain[:sumSize]), int(count), plain[sumSize+n:]}
		}
	}
	return pieces, nil
}
