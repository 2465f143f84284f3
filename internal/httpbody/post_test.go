package httpbody

import (
	"io"
	"net/http"
	"testing"
)

func TestPost(t *testing.T) {
	r, _ := http.NewRequest(http.MethodGet, "http://localhost", nil)
	Post(r, []byte(`{"a":1}`))
	again, err := r.GetBody()
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []io.Reader{r.Body, again} {
		if text, err := io.ReadAll(body); err != nil || string(text) != `{"a":1}` {
			t.Errorf("got %q, %v", text, err)
		}
	}
	if r.Method != http.MethodPost || r.ContentLength != 7 || r.Header.Get("Content-Length") != "7" ||
		r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %s, %d, %v", r.Method, r.ContentLength, r.Header)
	}
	r.Header.Set("Content-Encoding", "gzip")
	Empty(r)
	if text, err := io.ReadAll(r.Body); err != nil || len(text) > 0 || r.ContentLength != 0 || len(r.Header) > 0 ||
		r.GetBody != nil {
		t.Errorf("got %q, %v, %d, %v", text, err, r.ContentLength, r.Header)
	}
}
