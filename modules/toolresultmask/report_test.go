package toolresultmask

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
)

// reported returns the activity of the only route while a function runs.
func reported(t *testing.T, do func()) activity.Route {
	t.Helper()
	before := activity.Models
	defer func() { activity.Models = before }()
	activity.Models = activity.NewConversations()
	do()
	routes := activity.Models.Routes()
	if len(routes) != 1 {
		t.Fatalf("got %+v", routes)
	}
	return routes[0]
}

func respondWith(contentType, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

func TestConversationIsReported(t *testing.T) {
	h := provision(t, `{"window_turns":1,"route":"model"}`)
	long := strings.Repeat("A", 40_000)
	first, second := turns(long, "BBBB"), turns(long, "BBBB", "CCCC")
	var sent []receivedRequest
	got := reported(t, func() {
		for _, body := range []string{turns(long), first, first, second} {
			s, _ := send(t, h, post(body), respondWith("application/json",
				`{"usage":{"prompt_tokens":1000,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":600}}}`))
			sent = append(sent, s)
		}
	})
	before, after := len(turns(long))+2*len(first)+len(second), 0
	for _, s := range sent {
		after += len(s.body)
	}
	if got.Route != "model" || got.Requests != 4 || got.Masked != 3 || got.Results != 4 || got.SavedChars < 100_000 ||
		got.BytesBefore != int64(before) || got.BytesAfter != int64(after) || after > before/3 {
		t.Errorf("%d bytes, %d sent: got %+v", before, after, got)
	}
	if want := (activity.Usage{Input: 4000, Cached: 2400, Output: 8}); got.Usage != want || got.TokensAfter != 4000 {
		t.Errorf("got %+v", got)
	}
	want := int64(1000)
	for i, body := range []string{first, first, second} {
		want += int64(1000 * float64(len(body)) / float64(len(sent[i+1].body)))
	}
	if diff := got.TokensBefore - want; diff < 0 || diff > 3 { // each request is rounded
		t.Errorf("got %d tokens before, want %d", got.TokensBefore, want)
	}
	// Two requests mask results for the first time. The first of them is sent twice and counts
	// twice, because a repetition is not recognized.
	if len(got.Moves) != 3 || got.Moves[0].Results != 2 || got.Moves[2].Results != 1 || got.Moves[0].Cached != 600 ||
		got.Moves[0].Input != 1000 || got.Moves[0].Cost != got.Cost/4 || got.Moves[0].CostBefore == 0 {
		t.Errorf("got %+v", got.Moves)
	}
}

func TestReportedTokens(t *testing.T) {
	long := strings.Repeat("A", 40_000)
	body, short := turns(long, "BBBB"), turns("AAAA")
	for _, test := range []struct {
		name          string
		body          string
		answer        func(http.ResponseWriter)
		bytes         int
		before, after int64
	}{
		{"reported usage", short, respondWith("application/json", `{"usage":{"input_tokens":10,`+
			`"cache_read_input_tokens":70,"cache_creation_input_tokens":20}}`), len(short), 100, 100},
		{"a stream without usage", short, respondWith("text/event-stream", "data: {}\n\n"), len(short),
			int64(len(short) / 4), int64(len(short) / 4)},
		{"a refused request", body, respondWith("application/json", `{"error":{"message":"overloaded"}}`), len(body),
			0, 0},
		{"no response", body, func(http.ResponseWriter) {}, len(body), 0, 0},
		{"not a conversation", `{"input":"x"}`, respondWith("application/json", `{"usage":{"prompt_tokens":3}}`), 13, 3,
			3},
		{"not JSON", `no`, respondWith("application/json", chatAnswer), 2, 10, 10},
		{"an empty request", ``, respondWith("application/json", chatAnswer), 0, 10, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := provision(t, `{"window_turns":1}`)
			got := reported(t, func() { send(t, h, post(test.body), test.answer) })
			if got.Requests != 1 || got.BytesBefore != int64(test.bytes) || got.TokensBefore != test.before ||
				got.TokensAfter != test.after ||
				got.Masked == 0 && got.BytesAfter != got.BytesBefore {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A request that is too large to mask passes unchanged, and is reported.
func TestPassedRequestIsReported(t *testing.T) {
	h := provision(t, `{"window_turns":1,"buffer_limit":100}`)
	body := turns(strings.Repeat("A", 1000), "BBBB")
	for _, length := range []int64{int64(len(body)), -1} {
		got := reported(t, func() {
			r := post(body)
			r.ContentLength = length
			send(t, h, r, respondWith("application/json", chatAnswer))
		})
		if got.Requests != 1 || got.Masked != 0 || got.BytesBefore != got.BytesAfter || got.BytesBefore < 100 ||
			length > 0 && got.BytesBefore != length ||
			got.TokensBefore != 10 || got.TokensAfter != 10 || len(got.Moves) > 0 {
			t.Errorf("length %d: got %+v", length, got)
		}
	}
}

// With two masks, the outer one reports the request, with the changes of both.
func TestNestedMasksReportOnce(t *testing.T) {
	outer, inner := provision(t, `{"window_turns":2,"route":"outer"}`), provision(t, `{"window_turns":1,"route":"inner"}`)
	long := strings.Repeat("A", 10_000)
	body := turns(long, long, "CCCC")
	failure := errors.New("no upstream")
	got := reported(t, func() {
		w := httptest.NewRecorder()
		r := caddyhttp.PrepareRequest(post(body), caddy.NewReplacer(), w, new(caddyhttp.Server))
		model := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return failure })
		behind := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			return inner.ServeHTTP(w, r, model)
		})
		if err := outer.ServeHTTP(w, r, behind); !errors.Is(err, failure) {
			t.Error(err)
		}
	})
	if got.Route != "outer" || got.Requests != 1 || got.Masked != 1 || got.Results < 2 || len(got.Moves) != 1 ||
		got.BytesBefore != int64(len(body)) || got.BytesAfter > 2000 || got.TokensAfter != 0 {
		t.Errorf("got %+v", got)
	}
}
