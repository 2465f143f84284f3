package upstream

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestCauses(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	foreign := httptest.NewTLSServer(http.NotFoundHandler())
	defer foreign.Close()
	foreign.Config.ErrorLog = log.New(io.Discard, "", 0)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(address string) error {
		_, err := client.Get(address)
		var hidden *url.Error
		if !errors.As(err, &hidden) {
			t.Fatalf("%s: %v", address, err)
		}
		return hiddenError{hidden.Err}
	}
	for _, tt := range []struct {
		name string
		err  error
		want jsonrpc.Cause
	}{
		{"a closed port", get(gone.URL), jsonrpc.CauseRefused},
		{"a name that does not exist", get("http://no-such-host.invalid"), jsonrpc.CauseNoHost},
		{"TLS to a plain port", tls.RecordHeaderError{Msg: "tls: first record does not look like a TLS handshake"},
			jsonrpc.CauseTLS},
		{"a certificate of a private authority", get(foreign.URL), jsonrpc.CauseTLS},
		{"a route that does not exist", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("network is unreachable")},
			jsonrpc.CauseNoRoute},
		{"a connection that was closed", io.ErrUnexpectedEOF, jsonrpc.CauseLost},
		{"an aborted response", errAborted, jsonrpc.CauseLost},
		{"a known cause", &StatusError{502, startError{}}, jsonrpc.CauseNotStarted},
		{"anything else", errors.New("?"), jsonrpc.CauseNoRoute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := causeOf(tt.err); got != tt.want {
				t.Errorf("%v is %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}

type startError struct{}

func (startError) Error() string { return "exec: no" }

func (startError) Cause() jsonrpc.Cause { return jsonrpc.CauseNotStarted }

// A child that runs but does not respond to the handshake may not be an MCP server.
func TestFaultOfASilentChild(t *testing.T) {
	failure := jsonrpc.Timeout("a")
	failure.Cause = jsonrpc.CauseStarting
	const want = "not initialized within 2m0s: the process runs, but has not answered; " +
		"check that it is an MCP server on stdio"
	if got := (&Server{Name: "a", ChildrenOnly: true}).Fault(failure, "initialize", 2*time.Minute).Reason; got != want {
		t.Errorf("got %q", got)
	}
}

// A hiddenError hides its cause, like reverse_proxy's DialError.
type hiddenError struct{ error }

func TestResultIn(t *testing.T) {
	for _, test := range []struct {
		answer, want string
		whole        bool
	}{
		{`{"jsonrpc":"2.0","id":1,"result":{"a":[1]}}`, `{"a":[1]}`, true},
		{` { "result" : 1 , "id" : 1 } `, `1`, true},
		{`{"error":null,"result":{}}`, `{}`, true},
		{`{"id":1,"error":{"code":1}}`, `{"code":1}`, true},
		{`{"id":1,"result":{"a":`, `{"a":`, false},
		{`{"id":1, "error" : {"code"`, `{"code"`, false},
		{`{"id":1,"res`, ``, false},
		{`{"id":1}`, ``, false},
		{`[{"result":1}]`, ``, false},
		{`<html>`, ``, false},
		{``, ``, false},
	} {
		if got, whole := resultIn([]byte(test.answer)); string(got) != test.want || whole != test.whole {
			t.Errorf("%s: got %s, %t", test.answer, got, whole)
		}
	}
}

// Comments and events without data only keep a stream alive.
func TestIsKeepAlive(t *testing.T) {
	for piece, empty := range map[string]bool{
		"":                               false,
		"\n\n":                           false,
		":\n\n":                          true,
		": ping\r\n\r\n":                 true,
		": ping - 2026-11-16 10:00:00":   true,
		"id: 1\nretry: 500\ndata:\n\n":   true,
		"id: 1\r\ndata: \t \r\n\r\n":     true,
		"event: message\nid: 7\n":        true,
		"data: {}\n\n":                   false,
		"\n\nid: 1\ndata: {\"a\":1}\n\n": false,
		": ping\n\ndata: 1\n\n":          false,
		"data:\rdata: 1\r\r":             false,
		"data":                           false,
		"id":                             false,
		"events: 1\n":                    false,
		`{"jsonrpc":"2.0","result":{}}`:  false,
		`id","result":{"a":":`:           false,
	} {
		if isKeepAlive([]byte(piece)) != empty {
			t.Errorf("%q: empty %v", piece, !empty)
		}
	}
}

// The cache is limited. Each server has its own share.
func TestToolCache(t *testing.T) {
	cache := newToolCache[int](focusQuota, focusLimits, focusTime)
	defer cache.close()
	has := func(tool toolKey) bool {
		_, ok := cache.get(tool)
		return ok
	}
	x, ofAnother, toAnother := toolKey{"a", "s", "x"}, toolKey{"b", "s", "x"}, toolKey{"a", "t", "x"}
	if !cache.store("a", x, 1) || !has(x) || has(ofAnother) || has(toAnother) {
		t.Error("wrong tool")
	}
	cache.remove(ofAnother)
	if cache.remove(toAnother); !has(x) {
		t.Error("removing another tool removed this one")
	}
	if cache.remove(x); has(x) {
		t.Error("the removed tool is still cached")
	}
	for i := range focusLimits.OwnerEntries + 10 {
		cache.store("a", toolKey{"a", "s", strconv.Itoa(i)}, i)
	}
	cache.store("b", ofAnother, 1)
	if n := cache.tools.Len(); n > focusLimits.OwnerEntries+1 || !has(ofAnother) {
		t.Errorf("%d tools are cached", n)
	}
}

// A timer that runs while the exchange ends neither cancels the call nor starts again.
func TestTimeLimitsEnd(t *testing.T) {
	for _, left := range []time.Duration{0, time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			l := &timeLimits{cancel: func(error) { t.Errorf("canceled with %s left", left) }}
			asked := 0
			l.start(time.Millisecond, endingReply{stop: func() { l.stop(); asked++ }, left: left})
			time.Sleep(time.Second)
			synctest.Wait()
			if asked != 1 {
				t.Errorf("the timer ran %d times with %s left", asked, left)
			}
		})
	}
}

// An endingReply ends the exchange when its timer asks for the time left.
type endingReply struct {
	reply
	stop func()
	left time.Duration
}

func (r endingReply) timeLeft(time.Duration) time.Duration {
	r.stop()
	return r.left
}

// Answers to server requests use placeholders in other goroutines.
func TestPlaceholdersInAnswers(t *testing.T) {
	for _, params := range []string{`{"name":"x"}`, `{}`} {
		x := &Exchange{Server: &Server{Name: "a"}, PostedMessage: new(PostedMessage)}
		if failure := x.Message.Read(jsonrpc.Request(1, "tools/call", []byte(params))); failure != nil {
			t.Fatal(failure)
		}
		x.cacheNames()
		var answers sync.WaitGroup
		for range 2 {
			answers.Go(func() { x.placeholder(ToolPlaceholder); x.placeholder(MethodPlaceholder) })
		}
		x.NewRecord("a", http.MethodPost, Aggregate)
		answers.Wait()
	}
}
