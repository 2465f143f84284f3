package stdio

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
)

// FuzzAppendFrame frames messages for a child and reads them again, in both framings and in pieces
// of any size. A message on a line changes only in its line breaks between tokens.
func FuzzAppendFrame(f *testing.F) {
	for _, message := range []string{`{"id":1}`, "{\r\n\"a\":\n\"\\n\"}", "{\"a\":\"\u2028\u0085\"}",
		`{"a":"` + strings.Repeat("x", 70<<10) + `"}`, `{}`, "{\"\xff\":1}", " {}\n"} {
		f.Add([]byte(message), []byte(`{"id":2}`), uint8(3))
	}
	f.Fuzz(func(t *testing.T, first, second []byte, step uint8) {
		for _, message := range [][]byte{first, second} {
			if !json.Valid(message) || bytes.TrimSpace(message)[0] != '{' {
				return
			}
		}
		for _, framing := range []Framing{Newline, ContentLength} {
			stream := []byte(newFrame(first, framing).text() + newFrame(second, framing).text())
			r := newFrameReader(&stepReader{stream, int(step)%64 + 1}, 1<<20)
			for _, message := range [][]byte{first, second} {
				got, _, err := r.next()
				want := message
				if framing == Newline {
					want = bytes.TrimSpace([]byte(strings.NewReplacer("\r", " ", "\n", " ").Replace(string(message))))
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%s: %q was read as %q, %v", framing, message, got, err)
				}
			}
			if got, _, err := r.next(); err == nil {
				t.Fatalf("%s: unexpected %q", framing, got)
			}
		}
	})
}

// FuzzSkippedMessageID checks that the id of a message that is too long is found, in pieces of any size.
func FuzzSkippedMessageID(f *testing.F) {
	for _, message := range []string{`{"jsonrpc":"2.0","id":7,"result":{"id":8}}`, `{"method":"m","id":"a\"b"}`,
		`{"result":1}`, `{"\u0069d":1.0,"method":1}`, `{"id":null}`, `[{"id":1}]`, `{"id":{"id":1}}`, `{"x":1`} {
		f.Add([]byte(message), uint8(2))
	}
	f.Fuzz(func(t *testing.T, message []byte, size uint8) {
		var whole, parts skippedMessage
		_, _ = whole.idWatcher().Write(message)
		watcher := parts.idWatcher()
		for piece := range slices.Chunk(message, int(size)+1) {
			_, _ = watcher.Write(bytes.Clone(piece))
		}
		if !bytes.Equal(whole.id, parts.id) || whole.isRequest != parts.isRequest {
			t.Fatalf("%q: %+v, in pieces %+v", message, whole, parts)
		}
		var m jsonrpc.Message
		var object map[string]json.RawMessage
		if m.Read(message) != nil || json.Unmarshal(message, &object) != nil || len(object["id"]) > 256 {
			return
		}
		if _, hasMethod := object["method"]; !bytes.Equal(whole.id, object["id"]) || whole.isRequest != hasMethod {
			t.Fatalf("%q: %+v", message, whole)
		}
	})
}

// A tally counts noise and dropped messages.
type tally struct{ noise, dropped int }

func (*tally) Started(string, int, bool) {}
func (*tally) NotStarted(string, bool)   {}
func (*tally) Exited(string, int, error) {}
func (n *tally) Noise(string)            { n.noise++ }
func (n *tally) Dropped(string)          { n.dropped++ }

// names reports whether an id is this number, perhaps as a string or with a point.
func names(id string, number int) bool {
	var value any
	if json.Unmarshal([]byte(id), &value) != nil {
		return false
	}
	text, isText := value.(string)
	n, err := strconv.ParseUint(text, 10, 64)
	return value == float64(number) || isText && err == nil && n == uint64(number)
}

// FuzzReceive checks that each call gets at most one response, whatever a child writes. The
// response has the number of the call, which becomes the id of the client. Nothing else in it
// changes.
func FuzzReceive(f *testing.F) {
	for _, said := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"a":1.0}}`, `{"id":2,"error":{"code":-1,"message":"m"},"result":null}`,
		`{"id":"1","result":{}}`, `{"id":1.0,"result":{}}`, `{"id":01,"result":{}}`, `{"id":3,"result":{}}`,
		`{"id":1,"result":1}` + "\n" + `{"id":1,"result":2}`,
		`{"method":"notifications/progress","params":{"progressToken":1,"progress":5}}`,
		`{"method":"notifications/progress","params":{"progressToken":2}}`,
		`{"id":9,"method":"ping"}`, `{"id":"q","method":"roots/list"}`,
		`{"id":null,"method":"sampling/createMessage","params":{}}`,
		`{"method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"level":"info","msg":"started"}`, `{"jsonrpc":"2.0","id":1}`,
		`{"method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}`,
		`{"id":1,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}`,
		`{"method":"notifications/resources/updated","params":{"uri":"a:b"}}`,
		`{"method":"notifications/tools/list_changed"}`, `{"method":"notifications/message"}`,
		`{"id":18446744073709551617,"result":1}`, `{"id":-1,"result":1}`, `{"id":" 1","result":{"id":1}}`,
		`{"id":"\u0032","result":1}`, `{"id":10e-1,"result":1}`,
	} {
		f.Add([]byte(said))
	}
	requests := []string{
		`{"id":"\u0061","method":"tools/call","params":{"_meta":{"progressToken":"p"}}}`,
		`{"id":12345678901234567890,"method":"tools/call"}`,
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		seen := new(tally)
		pool := NewPool(Config{Framing: Newline, Logger: zap.NewNop}, seen)
		c := newChild(newServer(pool, address{}, nil), &process{})
		calls := make([]*call, len(requests))
		for i, request := range requests {
			calls[i] = &call{inbox: newInbox("", maxUnread)}
			if failure := calls[i].request.Read([]byte(request)); failure != nil {
				t.Fatal(failure)
			}
			if err := c.calls.register(calls[i]); err != nil {
				t.Fatal(err)
			}
		}
		c.calls.noteRead()
		answered := make([]bool, len(calls))
		for line := range bytes.SplitSeq(said, []byte("\n")) {
			var m jsonrpc.Message
			if m.Read(line) != nil {
				continue
			}
			before := bytes.Clone(line)
			newReceiver(c).receive(&m, nil)
			if !bytes.Equal(line, before) {
				t.Fatalf("line %q changed to %q", before, line)
			}
			object := jsontest.Members(line)
			_, isCall := object["method"]
			_, hasResult := object["result"]
			_, hasError := object["error"]
			for i, call := range calls {
				own, isOwn := string(call.request.Literal(jsonrpc.ID)), names(object["id"], i+1)
				for {
					l, ok, last := call.inbox.Take()
					if !ok {
						break
					}
					text := []byte(l.message.text())
					got := jsontest.Members(text)
					if !json.Valid(text) {
						t.Fatalf("line %q reached a client as %q", line, text)
					}
					if !last {
						if !isCall || got["id"] != object["id"] {
							t.Fatalf("line %q reached a client as %q", line, text)
						}
						continue
					}
					if isCall || answered[i] || !isOwn || got["id"] != own {
						t.Fatalf("line %q became the response to %s: %q", line, own, text)
					}
					answered[i] = true
					if !hasResult && !hasError {
						continue // an error from the gateway
					}
					delete(got, "id")
					delete(object, "id")
					if listen := `"io.modelcontextprotocol/subscriptionId"`; !maps.Equal(got, object) &&
						!strings.Contains(string(line), listen) &&
						!strings.Contains(string(line), `\u`) {
						t.Fatalf("line %q reached a client as %q", line, text)
					}
				}
				if wanted := !isCall && (hasResult || hasError) && isOwn; wanted && !answered[i] {
					t.Fatalf("line %q did not reach its client", line)
				}
			}
		}
		// Each line for the child is a message.
		for len(c.input.messages) > 0 {
			if frame := []byte((<-c.input.messages).text()); !json.Valid(frame) || bytes.IndexByte(frame, '\n') != len(frame)-1 {
				t.Fatalf("after %q, the child gets %q", said, frame)
			}
		}
	})
}
