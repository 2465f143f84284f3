package httpbody

import (
	"io"
	"net/http"
)

// Read reads the body of a request of at most limit bytes, or one byte more of a
// longer one.
func Read(r *http.Request, limit int64) ([]byte, error) { return read(r, limit, pace{}) }

func read(r *http.Request, limit int64, arriving pace) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	// Memory for what is announced is taken only when some of it has come.
	const trust = 1 << 20
	announced := min(limit, 4<<10)
	if r.ContentLength >= 0 {
		announced = min(r.ContentLength, limit)
	}
	raw := make([]byte, 0, min(announced, trust)+1) // the one byte more has the end of the body in it
	for int64(len(raw)) <= limit {
		if len(raw) == cap(raw) {
			larger := min(2*int64(cap(raw)), limit+1)
			raw = append(make([]byte, 0, max(larger, announced+1)), raw...)
		}
		n, err := arriving.read(r.Body, raw[len(raw):cap(raw)])
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
