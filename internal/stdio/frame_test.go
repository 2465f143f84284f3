package stdio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// readAll returns what a reader of frames finds: messages as they are, noise as
// "noise …" and what is too long as "too long …" with its id.
func readAll(r *frameReader) (found []string) {
	for {
		frame, _, err := r.next()
		var tooLong *tooLongError
		switch {
		case err == nil:
			found = append(found, string(frame))
		case errors.Is(err, errNoise):
			found = append(found, "noise "+string(frame))
		case errors.As(err, &tooLong):
			found = append(found, "too long "+string(tooLong.id)+map[bool]string{true: " asks"}[tooLong.isRequest])
		default:
			return found
		}
	}
}

func TestFramesAreRead(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	// of the longest that is allowed
	edge := `{"id":1,"result":"` + strings.Repeat(
		"x",
		100_000-len(`{"id":1,"result":""}`),
	) + `"}`
	tests := []struct {
		name  string
		input string
		want  []string
	}{
		{"nothing", "", nil},
		{"a line is a message", "{}\n", []string{"{}"}},
		{"a line may end with a carriage return", "{\"a\":1}\r\n{}\r\n", []string{`{"a":1}`, "{}"}},
		{"the last line needs no end", "{}\n{\"a\":1}", []string{"{}", `{"a":1}`}},
		{"blank lines are nothing", "\n\r\n  \n{}\n\n", []string{"{}"}},
		{"blanks around a message are nothing", "  {} \t\n", []string{"{}"}},
		{"a banner is noise", "Server v1.0: ready\n{}\n", []string{"noise Server v1.0: ready", "{}"}},
		{"a batch is noise", "[{}]\n{}\n", []string{"noise [{}]", "{}"}},
		{"a length comes before its message", "Content-Length: 7\r\n\r\n{\"a\":1}", []string{`{"a":1}`}},
		{"its name may be in any case", "content-length:2\n\n{}", []string{"{}"}},
		{"other headers may follow it", "Content-Length: 2\r\nContent-Type: x\r\n\r\n{}", []string{"{}"}},
		{"a message of a length may have line breaks", "Content-Length: 9\r\n\r\n{\"a\":\n\n1}", []string{"{\"a\":\n\n1}"}},
		{
			"both framings may be mixed",
			"{}\nContent-Length: 7\r\n\r\n{\"a\":1}{\"b\":1}\nContent-Length: 2\r\n\r\n{}\n",
			[]string{"{}", `{"a":1}`, `{"b":1}`, "{}"},
		},
		{
			"an invalid length is noise",
			"Content-Length: many\n{}\nContent-Length: -1\n{}\n",
			[]string{"noise Content-Length: many", "{}", "noise Content-Length: -1", "{}"},
		},
		{
			"a length that no message has is noise",
			"Content-Length: 99999999999\r\n\r\n{}\n",
			[]string{"noise Content-Length: 99999999999", "{}"},
		},
		{"a byte order mark is nothing", "\ufeff{}\n{}\n\ufeffContent-Length: 2\r\n\r\n{}", []string{"{}", "{}", "{}"}},
		{"what is cut off is the end", "{}\nContent-Length: 70\r\n\r\n{", []string{"{}"}},

		{"a message may have as many bytes as allowed", edge + "\n{}\n", []string{edge, "{}"}},
		{"but not one more", edge[:len(edge)-2] + "x\"}\n{}\n", []string{"too long 1", "{}"}},
		{
			"nor by its length",
			"Content-Length: " + strconv.Itoa(len(edge)+1) + "\r\n\r\n" + edge[:len(edge)-2] + "x\"}{}\n",
			[]string{"too long 1", "{}"},
		},
		{"of what is too long the id is known", `{"id":5,"result":"` + long + "\"}\n{}\n", []string{"too long 5", "{}"}},
		{
			"also if it comes last",
			`{"result":"` + long + `","jsonrpc":"2.0","id":"q"}` + "\n{}\n",
			[]string{`too long "q"`, "{}"},
		},
		{
			"also if there are others within",
			`{"result":{"id":1,"x":"` + long + `"},"id":2}` + "\n{}\n",
			[]string{"too long 2", "{}"},
		},
		{
			"a request is distinguished from a response",
			`{"id":7,"params":{"x":"` + long + `"},"method":"x"}` + "\n{}\n",
			[]string{"too long 7 asks", "{}"},
		},
		{
			"a notification that is too long has none",
			`{"method":"x","params":{"x":"` + long + `"}}` + "\n{}\n",
			[]string{"too long  asks", "{}"},
		},
		{"noise that is too long has none either", long + "\n{}\n", []string{"too long ", "{}"}},
		{"noise may be long", long[:90_000] + "\n{}\n", []string{"noise " + long[:90_000], "{}"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for name, src := range map[string]io.Reader{
				"at once":      strings.NewReader(tt.input),
				"byte by byte": iotest.OneByteReader(strings.NewReader(tt.input)),
				"with the end": iotest.DataErrReader(strings.NewReader(tt.input)),
			} {
				got := readAll(newFrameReader(src, 100_000))
				if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
					t.Errorf("%s: got %.300q, want %.300q", name, got, tt.want)
				}
			}
		})
	}
}

// Messages of all lengths are read one after the other, and stay as they were read.
func TestLongFramesAreRead(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var stream []byte
	var want []string
	for range 200 {
		size := 1 << random.IntN(22)
		message := `{"result":"` + strings.Repeat(string(rune('a'+random.IntN(26))), size+random.IntN(size)) + `"}`
		want = append(want, message)
		stream = append(stream, newFrame([]byte(message), []Framing{Newline, ContentLength}[random.IntN(2)]).text()...)
	}
	r := newFrameReader(&stepReader{stream, 300_000}, 1<<22)
	var got [][]byte
	for range want {
		message, _, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, message)
	}
	for i := range want {
		if string(got[i]) != want[i] {
			t.Errorf("message %d of %d bytes is another one, of %d bytes", i, len(want[i]), len(got[i]))
		}
	}
}

func TestFramesAreWritten(t *testing.T) {
	tests := []struct {
		name    string
		framing Framing
		message string
		want    string
	}{
		{"a message is a line", Newline, `{"a":"\n"}`, "{\"a\":\"\\n\"}\n"},
		{"line breaks between tokens are spaces", Newline, "{\r\n\t\"a\":\n1}\n", "{  \t\"a\": 1} \n"},
		{"a separator of Unicode is none", Newline, "{\"a\":\"\u2028\"}", "{\"a\":\"\u2028\"}\n"},
		{"a length comes first", ContentLength, "{\n\"é\":1}", "Content-Length: 9\r\n\r\n{\n\"é\":1}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			equal(t, "frame", newFrame([]byte(tt.message), tt.framing).text(), tt.want)
		})
	}
}

// FuzzFrames compares the frames of input that arrives in steps with the frames that
// naiveFrames finds in the whole input.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{
		"{}\n{\"id\":1}\r\n", "noise\n{}\n\n", "Content-Length: 2\r\n\r\n{}{}\n", "Content-Length: 3\n\n{}",
		"content-length:2\nX: y\n\n{}\nContent-Length: x\n{}",
		"Content-Length: 99\r\n\r\n{\"id\":7," +
			"\"x\":\"................................................................................\"}{}\n",
		"{\"result\":\"........................................................................\",\"id\":3}\n{}", "\n \r\n{",
		"Content-Length: 0\n\n{}\n",
		strings.Repeat("noise", 20) + "\n{}\n", "Content-Length: 70000\n{}\n",
	} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, input []byte, step uint8) {
		const longest = 64
		src := &stepReader{input, int(step)%16 + 1}
		got := readAll(newFrameReader(src, longest))
		want := naiveFrames(input, longest)
		if len(got) != len(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for i := range got {
			if strings.HasPrefix(got[i], "too long ") {
				got[i] = "too long"
			}
			if got[i] != want[i] {
				t.Errorf("%d: got %q, want %q", i, got[i], want[i])
			}
		}
	})
}

// stepReader returns so many bytes at a time.
type stepReader struct {
	rest []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.step)], r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// naiveFrames is readAll for who has all of the input, which has no line that is
// longer than the buffer of a frameReader.
func naiveFrames(input []byte, longest int) (found []string) {
	for len(input) > 0 {
		line, rest, _ := bytes.Cut(input, []byte("\n"))
		input = rest
		line = bytes.TrimSpace(line)
		name, value, isHeader := strings.Cut(string(line), ":")
		n, err := strconv.Atoi(strings.TrimSpace(value))
		switch {
		case len(line) == 0:
		case line[0] == '{' && len(line) > longest:
			found = append(found, "too long")
		case line[0] == '{':
			found = append(found, string(line))
		case isHeader && strings.EqualFold(name, "Content-Length") && err == nil && n >= 0 && n <= maxExcess*longest &&
			len(line) <= 64:
			for {
				line, rest, ended := bytes.Cut(input, []byte("\n"))
				input = rest
				if !ended {
					return found
				}
				if len(bytes.TrimSpace(line)) == 0 {
					break
				}
			}
			if n > len(input) {
				return found
			}
			if n > longest {
				found = append(found, "too long")
			} else {
				found = append(found, string(input[:n]))
			}
			input = input[n:]
		default:
			found = append(found, "noise "+string(line))
		}
	}
	return found
}

// TestLinesStayLines: after a message that was a line, what looks like a header is text.
func TestLinesStayLines(t *testing.T) {
	const input = "Content-Length: 2\r\n\r\n{}{}\nContent-Length: 9\r\n\r\n{}\n{}\n"
	r := newFrameReader(strings.NewReader(input), 1000)
	var got []string
	for {
		frame, _, err := r.next()
		if err != nil && !errors.Is(err, errNoise) {
			break
		}
		if err == nil {
			r.settle()
		}
		got = append(got, string(frame))
	}
	equal(t, "frames", strings.Join(got, "|"), "{}|{}|Content-Length: 9|{}|{}")
}

// TestLargeMessagesAreNotCopied on their way to a child.
func TestLargeMessagesAreNotCopied(t *testing.T) {
	raw := []byte(toolCall(`"theirs"`, "echo", `{"x":"`+strings.Repeat("x", 1<<20)+`"}`))
	m := message(t, string(raw))
	m.Raw = raw
	for _, framing := range []Framing{Newline, ContentLength} {
		f := editedFrame(m.Raw, m.ReplaceAll([]byte("7"), jsonrpc.ID), framing)
		shared := 0
		for _, piece := range f {
			if len(piece) > 0 && &piece[0] == &raw[0] || len(piece) > 1<<20 && &piece[len(piece)-1] == &raw[len(raw)-1] {
				shared += len(piece)
			}
		}
		equal(t, "shared bytes", shared, len(raw)-len(`"theirs"`))
		contains(t, "frame", f.text(), `"id":7,"method"`)
	}
}
