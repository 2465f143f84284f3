package httpbody

import (
	"bytes"
	"io"
	"net/http"
)

// A keptBody is a body whose bytes stay in memory and never change.
type keptBody struct {
	bytes.Reader
	raw []byte
}

func (*keptBody) Close() error { return nil }

// Keep returns the GetBody of a request with the body raw. It lets [ReadKept] return raw itself.
func Keep(raw []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		body := &keptBody{raw: raw}
		body.Reset(raw)
		return body, nil
	}
}

// ReadKept reads a body like [Read]. If the body has the bytes that the request keeps in memory,
// see [Keep], it returns those instead of a copy, so they must not be changed. It reads the body in
// any case, because a handler may have replaced it.
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
	if body, ok := body.(*keptBody); ok {
		return body.raw
	}
	return nil
}
