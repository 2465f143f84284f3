package httpbody

import (
	"io"
	"net/http"
)

// Read reads the body of a request of at most limit bytes, or one byte more if it is longer.
func Read(r *http.Request, limit int64) ([]byte, error) { return read(r, limit, pace{}) }

func read(r *http.Request, limit int64, arriving pace) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	// Memory for the announced length is allocated only after some bytes have arrived.
	const trust = 1 << 20
	announced := announcedSize(r.ContentLength, limit)
	grow := func(raw []byte, size int64) ([]byte, error) { return append(make([]byte, 0, size), raw...), nil }
	return fill(r.Body, announced, min(announced, trust), limit, arriving, grow)
}

// announcedSize returns the expected size of a body, at most limit.
func announcedSize(length, limit int64) int64 {
	if length < 0 {
		return min(limit, 4<<10)
	}
	return min(length, limit)
}

// fill reads a body of at most limit bytes, or one byte more if it is longer. grow copies what has
// been read to a larger buffer. The first buffer has trusted bytes, the next the announced size.
func fill(
	body io.Reader, announced, trusted, limit int64, arriving pace, grow func(raw []byte, size int64) ([]byte, error),
) (raw []byte, err error) {
	size := trusted + 1 // one byte more, to find the end of the body
	for int64(len(raw)) <= limit {
		if len(raw) == cap(raw) {
			larger, err := grow(raw, size)
			if err != nil {
				return raw, err
			}
			raw = larger
			size = max(min(2*int64(cap(raw)), limit+1), announced+1)
		}
		n, err := arriving.read(body, raw[len(raw):min(int64(cap(raw)), limit+1)])
		raw = raw[:len(raw)+n]
		if err == io.EOF {
			return raw, nil
		}
		if err != nil {
			return raw, err
		}
	}
	return raw, nil
}
