package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// readAll reads all frames. It returns messages unchanged, noise with the prefix "noise", and "too
// long" with the id of a message that exceeds the limit.
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
	// A message of exactly the allowed length.
	edge := `{"id":1,"result":"` + strings.Repeat(
		"x",
		100_000-len(`{"id":1,"result":""}`),
	) + `"}`
	tests := []struct {
		name  string
		input string
		want  []string
	}{
		{"empty input", "", nil},
		{"a line is a message", "{}\n", []string{"{}"}},
		{"a line may end with a carriage return", "{\"a\":1}\r\n{}\r\n", []string{`{"a":1}`, "{}"}},
		{"the last line needs no end", "{}\n{\"a\":1}", []string{"{}", `{"a":1}`}},
		{"blank lines are skipped", "\n\r\n  \n{}\n\n", []string{"{}"}},
		{"spaces around a message are removed", "  {} \t\n", []string{"{}"}},
		{"a banner is noise", "Server v1.0: ready\n{}\n", []string{"noise Server v1.0: ready", "{}"}},
		{"a batch is noise", "[{}]\n{}\n", []string{"noise [{}]", "{}"}},
		{"Content-Length precedes a message", "Content-Length: 7\r\n\r\n{\"a\":1}", []string{`{"a":1}`}},
		{"header names are case-insensitive", "content-length:2\n\n{}", []string{"{}"}},
		{"other headers are skipped", "Content-Length: 2\r\nContent-Type: x\r\n\r\n{}", []string{"{}"}},
		{"line breaks in a message with Content-Length", "Content-Length: 9\r\n\r\n{\"a\":\n\n1}", []string{"{\"a\":\n\n1}"}},
		{
			"framings can be mixed",
			"{}\nContent-Length: 7\r\n\r\n{\"a\":1}{\"b\":1}\nContent-Length: 2\r\n\r\n{}\n",
			[]string{"{}", `{"a":1}`, `{"b":1}`, "{}"},
		},
		{
			"an invalid length is noise",
			"Content-Length: many\n{}\nContent-Length: -1\n{}\n",
			[]string{"noise Content-Length: many", "{}", "noise Content-Length: -1", "{}"},
		},
		{
			"a huge length is noise",
			"Content-Length: 99999999999\r\n\r\n{}\n",
			[]string{"noise Content-Length: 99999999999", "{}"},
		},
		{"a byte order mark is skipped", "\ufeff{}\n{}\n\ufeffContent-Length: 2\r\n\r\n{}", []string{"{}", "{}", "{}"}},
		{"a truncated message is dropped", "{}\nContent-Length: 70\r\n\r\n{", []string{"{}"}},

		{"a message of the maximum length", edge + "\n{}\n", []string{edge, "{}"}},
		{"a line over the maximum length", edge[:len(edge)-2] + "x\"}\n{}\n", []string{"too long 1", "{}"}},
		{
			"a Content-Length over the maximum length",
			"Content-Length: " + strconv.Itoa(len(edge)+1) + "\r\n\r\n" + edge[:len(edge)-2] + "x\"}{}\n",
			[]string{"too long 1", "{}"},
		},
		{"the id of a message that is too long", `{"id":5,"result":"` + long + "\"}\n{}\n", []string{"too long 5", "{}"}},
		{
			"an id at the end of a message that is too long",
			`{"result":"` + long + `","jsonrpc":"2.0","id":"q"}` + "\n{}\n",
			[]string{`too long "q"`, "{}"},
		},
		{
			"an id after a nested id in a message that is too long",
			`{"result":{"id":1,"x":"` + long + `"},"id":2}` + "\n{}\n",
			[]string{"too long 2", "{}"},
		},
		{
			"a request that is too long",
			`{"id":7,"params":{"x":"` + long + `"},"method":"x"}` + "\n{}\n",
			[]string{"too long 7 asks", "{}"},
		},
		{
			"a notification that is too long has no id",
			`{"method":"x","params":{"x":"` + long + `"}}` + "\n{}\n",
			[]string{"too long  asks", "{}"},
		},
		{"noise that is too long has no id", long + "\n{}\n", []string{"too long ", "{}"}},
		{"long noise", long[:90_000] + "\n{}\n", []string{"noise " + long[:90_000], "{}"}},
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

// Messages of many lengths are read one after the other. They stay unchanged while later ones are
// read.
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
			t.Errorf("message %d has %d bytes and differs from the input of %d bytes", i, len(want[i]), len(got[i]))
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
		{"a line separator of Unicode stays", Newline, "{\"a\":\"\u2028\"}", "{\"a\":\"\u2028\"}\n"},
		{"Content-Length precedes the message", ContentLength, "{\n\"é\":1}", "Content-Length: 9\r\n\r\n{\n\"é\":1}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			equal(t, "frame", newFrame([]byte(tt.message), tt.framing).text(), tt.want)
		})
	}
}

// FuzzFrames compares the frames of input that arrives in small pieces with those that naiveFrames
// finds in the complete input.
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

// stepReader returns at most step bytes at a time.
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

// naiveFrames is a simple implementation of readAll. It needs the complete input, and lines that
// fit in the buffer of a frameReader.
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

// After a message on a line of its own, a line that looks like a header is noise.
func TestHeadersAfterLinesAreNoise(t *testing.T) {
	const input = "Content-Length: 2\r\n\r\n{}{}\nContent-Length: 9\r\n\r\n{}\n{}\n"
	r := newFrameReader(strings.NewReader(input), 1000)
	var got []string
	for {
		frame, _, err := r.next()
		if err != nil && !errors.Is(err, errNoise) {
			break
		}
		if err == nil {
			r.noteValid()
		}
		got = append(got, string(frame))
	}
	equal(t, "frames", strings.Join(got, "|"), "{}|{}|Content-Length: 9|{}|{}")
}

// A large message is not copied when it is framed for a child.
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

func TestBlocksHaveRoom(t *testing.T) {
	sizes := []int{
		0,
		1,
		smallest,
		smallest + 1,
		2 * smallest,
		3*smallest - 1,
		3 * smallest,
		3*smallest + 1,
		5 << 20,
		largest - 1,
		largest,
		largest + 1,
		3 * largest,
	}
	for _, size := range sizes {
		b := newBlock(size)
		if len(b.bytes) < size || len(b.bytes) > max(size+size/4, smallest) {
			t.Errorf("a block for %d bytes has %d", size, len(b.bytes))
		}
		b.free()
		if again := newBlock(size); len(again.bytes) != len(b.bytes) {
			t.Errorf("the next block for %d bytes has %d", size, len(again.bytes))
		}
	}
}

// Responses reuse memory, but not that of a response that is still being read.
func TestResponseMemoryIsReused(t *testing.T) {
	p := newPuppets(t)
	var clients sync.WaitGroup
	for i, c := range "abcdefgh" {
		clients.Go(func() {
			client := p.client().initialize("{}")
			for round := range 20 {
				unit := []int{100, 9_000}[round%2]
				text := strings.Repeat(string(c), (i+1)*(round+1)*unit)
				id := fmt.Sprintf(`"%c%d"`, c, round)
				r := client.post(say(id, `{"jsonrpc":"2.0","id":$ID,"result":"`+text+`"}`+"\n"))
				if want := `{"jsonrpc":"2.0","id":` + id + `,"result":"` + text + `"}`; r.whole() != want {
					t.Errorf("%s: the response differs", id)
				}
			}
		})
	}
	clients.Wait()
}

func TestClosedBodyIsEmpty(t *testing.T) {
	p := newPuppets(t)
	r := p.client().post(request(`1`, "fill", `{"code":100000}`))
	beginning := make([]byte, 10)
	if _, err := io.ReadFull(r.Body, beginning); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
		if n, err := r.Body.Read(beginning); n > 0 || !errors.Is(err, os.ErrClosed) {
			t.Errorf("read %d bytes, %v", n, err)
		}
	}
}
