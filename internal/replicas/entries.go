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

// Large values are kept in pieces, so that none of them holds up what others do in the engine. Each
// piece is an entry of its own. The first says how many there are, and is written last.

const (
	pieceSize = 256 << 10
	maxPieces = 4096 // 1 GiB
	sumSize   = 8
	pieceCost = 512 // of memory, besides its bytes, at most

	readAtOnce = 4 // pieces
	maxReading = 4 // values of several pieces
)

// pieceKey returns the engine's key of a piece.
func (s *Space) pieceKey(owner, name string, i int) string {
	return s.key(owner, name) + ":" + strconv.Itoa(i)
}

// Keep keeps a value for an owner, who loses its oldest if it has too much.
func (s *Space) Keep(ctx context.Context, owner, name string, value []byte, ttl time.Duration) error {
	return s.keep(ctx, owner, "", name, value, ttl)
}

// KeepOf keeps a value for an owner as one of a client. A client that has too much of an owner loses its
// oldest values there. To find a value, the owner and the name are enough.
func (s *Space) KeepOf(ctx context.Context, client, owner, name string, value []byte, ttl time.Duration) error {
	return s.keep(ctx, owner, s.hash("client", client), name, value, ttl)
}

// keep keeps a value for an owner. It counts as one of a part of it.
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

// KeepBehind does so later, soon. Nothing is kept if too much is waiting already. The value must not be
// changed.
func (s *Space) KeepBehind(owner, name string, value []byte, ttl time.Duration) {
	keep := func(ctx context.Context) error { return s.Keep(ctx, owner, name, value, ttl) }
	s.Behind(owner, name, len(value), keep, nil)
}

// Behind calls write later, soon, which keeps a value of so many bytes. It calls lost, which must not
// block, if that has failed, or if it is not called because too much is waiting.
func (s *Space) Behind(owner, name string, bytes int, write func(context.Context) error, lost func()) {
	s.behind.add(writeKey{s.name, owner, name}, int64(bytes), queuedWrite{write, lost})
}

// Find returns what is kept for an owner, nil if it is not there.
func (s *Space) Find(ctx context.Context, owner, name string) (value []byte, err error) {
	_, value, err = s.FindAny(ctx, []string{owner}, name)
	return value, err
}

// FindAny returns what is kept for the first of some owners that has it, nil if none has.
func (s *Space) FindAny(ctx context.Context, owners []string, name string) (owner string, value []byte, err error) {
	first, errs := make([][]*piece, len(owners)), make([]error, len(owners))
	var asking sync.WaitGroup // at once: what they have may be on several machines
	for i, owner := range owners {
		asking.Go(func() { first[i], errs[i] = s.pieces(ctx, []string{s.pieceKey(owner, name, 0)}) })
	}
	asking.Wait()
	for i, pieces := range first {
		if pieces == nil || pieces[0] == nil {
			continue
		}
		value, errs[i] = s.rest(ctx, owners[i], name, pieces[0])
		if value != nil {
			return owners[i], value, nil
		}
	}
	return "", nil, errors.Join(errs...)
}

// rest returns the value that begins with a piece, nil if it is not all there.
func (s *Space) rest(ctx context.Context, owner, name string, first *piece) ([]byte, error) {
	if first.count == 1 {
		return first.text, nil
	}
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	value := slices.Grow(first.text, (first.count-1)*pieceSize)
	keys := make([]string, 0, first.count-1)
	for i := 1; i < first.count; i++ {
		keys = append(keys, s.pieceKey(owner, name, i))
	}
	for some := range slices.Chunk(keys, readAtOnce) {
		pieces, err := s.pieces(ctx, some)
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
	sum   string // of the value
	count int    // of its pieces
	text  []byte // not nil
}

// pieces returns the pieces of keys, nil for those that are not there.
func (s *Space) pieces(ctx context.Context, keys []string) ([]*piece, error) {
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
