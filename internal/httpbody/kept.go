package httpbody

import (
	"bytes"
	"io"
	"net/http"
)

// A kept body is one whose bytes stay in memory, and never change.
type kept struct {
	bytes.Reader
	raw []byte
}

func (*kept) Close() error { return nil }

// Keep returns a GetBody of a request that lets [ReadKept] find its bytes.
func Keep(raw []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		body := &kept{raw: raw}
		body.Reset(raw)
		return body, nil
	}
}

// ReadKept reads a body like [Read]. If the request keeps the same bytes in memory, see
// [Keep], it returns those in place of a copy, and so they must not be changed. The body
// is read all the same: somebody may have put another in its place.
func ReadKept(r *http.Request, limit int64) ([]byte, error) {
	known := keptBytes(r)
	if len(known) == 0 || int64(len(known)) > limit {
		return Read(r, limit)
	}
	buf := make([]byte, min(len(known)+1, 16<<10))
	for at := 0; ; {
		n, err := r.Body.Read(buf)
		same := bytes.HasPrefix(known[at:], buf[:n])
		if same && err == nil {
			at += n
			continue
		}
		if same && err == io.EOF && at+n == len(known) {
			return known, nil
		}
		if err != nil && err != io.EOF {
			return known[:at:at], err
		}
		rest := r.Body
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(known[:at]), bytes.NewReader(buf[:n]), rest), rest}
		return Read(r, limit)
	}
}

func keptBytes(r *http.Request) []byte {
	if r.Body == nil || r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close()
	if body, ok := body.(*kept); ok {
		return body.raw
	}
	return nil
}
