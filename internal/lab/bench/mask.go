package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bytedance/sonic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
)

var policy = mask.Policy{
	MaxChars:  mask.DefaultMaxChars,
	HeadChars: mask.DefaultHeadChars,
	TailChars: mask.DefaultTailChars,
	IsReply:   func() bool { return true }, // decided by observation_mask in the binary
}

func reportMask(ctx context.Context, chosen *regexp.Regexp, budget time.Duration) error {
	source, err := goSource("net/http/server.go")
	if err != nil {
		return err
	}
	fast, sonicName := sonicJSON()
	titled := false
	for _, c := range maskCases(source) {
		for _, size := range []struct {
			name  string
			bytes int
		}{{"100KB", 100_000}, {"10MB", 10_000_000}} {
			name := fmt.Sprintf("mask/%s/%s", c.name, size.name)
			if !chosen.MatchString(name) {
				continue
			}
			if !titled {
				printTitle("mask", sonicName)
				titled = true
			}
			ours := policy
			ours.KeepMedia = c.keepMedia
			contestants := []contestant{masker(ours), recode(decode, json.Marshal), recode(fast.Unmarshal, fast.Marshal)}
			if err := reportCase(ctx, name, contestants, response(c.result(size.bytes), c.resultFirst), budget); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// sonicJSON returns sonic.ConfigDefault with UseNumber. Unlike the other decoders, it
// accepts control characters in strings.
func sonicJSON() (sonic.API, string) {
	name := "sonic"
	if sonic.APIKind == sonic.UseStdJSON {
		name = "sonic=std" // sonic falls back to encoding/json on this machine
	}
	return sonic.Config{UseNumber: true}.Froze(), name
}

func printTitle(ours, sonicName string) {
	fmt.Printf("\n%-41s %7s %14s %9s %17s %12s %10s %7s\n", "GB/s, best round",
		ours, "encoding/json", sonicName, "vs encoding/json", "vs "+sonicName, "allocs/op", "B/op")
}

// reportCase measures the contestants with one body, in turns, and prints a row.
func reportCase(ctx context.Context, name string, contestants []contestant, body []byte, budget time.Duration) error {
	if err := checkAgreement(contestants, body); err != nil {
		return err
	}
	speeds, err := measure(ctx, contestants, body, budget)
	if err != nil {
		return err
	}
	allocs, bytes := allocations(contestants[0], body)
	fmt.Printf("%-41s %7.2f %14.3f %9.3f %16.1fx %11.1fx %10.1f %7.0f\n", name,
		speeds[0], speeds[1], speeds[2], speeds[0]/speeds[1], speeds[0]/speeds[2], allocs, bytes)
	return nil
}

// A maskCase is a result to mask. It is generated right before it is measured, so that the
// garbage collector scans one body, not all of them.
type maskCase struct {
	name                   string
	result                 func(size int) []byte
	resultFirst, keepMedia bool
}

func maskCases(source []string) []maskCase {
	ascii := text("The quick brown fox jumps over the lazy dog, and the log says so once more. ")
	return []maskCase{
		{name: "ascii", result: ascii},
		{name: "ascii,result-first", result: ascii, resultFirst: true},
		{name: "cjk+emoji", result: text("工具返回的日志很长，模型只需要开头和结尾。", "エラーは真ん中にあります🚀", "모두 정상입니다👩‍💻✅")},
		{name: "source", result: text(source...)},
		{name: "small-strings", result: files},
		{name: "small-strings,keep_media", result: files, keepMedia: true},
		{name: "base64", result: func(size int) []byte {
			raw := make([]byte, size/4*3)
			_, _ = rand.NewChaCha8([32]byte{}).Read(raw) // never fails
			return text(base64.StdEncoding.EncodeToString(raw))(size)
		}},
	}
}

// text returns a generator of results with one text: the pieces, repeated, as
// encoding/json writes them.
func text(pieces ...string) func(size int) []byte {
	return func(size int) []byte {
		result := []byte(`{"content":[{"type":"text","text":"`)
		for i := 0; len(result) < size; i++ {
			spelling, _ := json.Marshal(pieces[i%len(pieces)]) // never fails for strings
			result = append(result, spelling[1:len(spelling)-1]...)
		}
		return append(result, `"}]}`...)
	}
}

// files returns a result with many small strings.
func files(size int) []byte {
	result := []byte{'['}
	for i := 0; len(result) < size; i++ {
		result = fmt.Appendf(result, `{"path":"internal/orders/file_%d.go","kind":"text/x-go","owner":"team-%d",`+
			`"size":%d,"tracked":true,"note":"ok"},`,
			i, i%17, i*7919%100_000)
	}
	result[len(result)-1] = ']'
	return result
}

// goSource returns the lines of a file that every Go installation has.
func goSource(file string) ([]string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find GOROOT: %w", err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "src", file))
	return strings.SplitAfter(string(source), "\n"), err
}

func response(result []byte, resultFirst bool) []byte {
	if resultFirst {
		return fmt.Appendf(nil, `{"result":%s,"jsonrpc":"2.0","id":1}`, result)
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":%s}`, result)
}

// A contestant masks a body. Its output is valid until its next call.
type contestant func(body []byte) ([]byte, error)

func masker(policy mask.Policy) contestant {
	const piece = 32 << 10 // copy buffer of reverse_proxy
	var (
		m   mask.Masker
		out bytes.Buffer
	)
	return func(body []byte) ([]byte, error) {
		out.Reset()
		m.Reset(&out, policy)
		for ; len(body) > piece; body = body[piece:] {
			_, _ = m.Write(body[:piece]) // a bytes.Buffer never fails
		}
		_, _ = m.Write(body)
		err := m.End()
		return out.Bytes(), err
	}
}

// recode decodes, cuts and encodes a message: the alternative to package mask.
func recode(unmarshal func([]byte, any) error, marshal func(any) ([]byte, error)) contestant {
	return func(body []byte) ([]byte, error) {
		var message map[string]any
		if err := unmarshal(body, &message); err != nil {
			return nil, err
		}
		message["result"] = cutStrings(message["result"])
		return marshal(message)
	}
}

// decode is json.Unmarshal, but keeps numbers as written. Large ones would change as floats.
func decode(body []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	return dec.Decode(v)
}

// cutStrings does to a decoded value what package mask does to encoded JSON.
func cutStrings(value any) any {
	switch v := value.(type) {
	case string:
		return cutString(v)
	case []any:
		for i := range v {
			v[i] = cutStrings(v[i])
		}
	case map[string]any:
		for name, member := range v {
			if s, ok := member.(string); ok && len(s) <= policy.MaxChars {
				continue // assigning unchanged members would dominate the cost
			}
			v[name] = cutStrings(member)
		}
	}
	return value
}

func cutString(s string) string {
	chars := utf8.RuneCountInString(s)
	if chars <= policy.MaxChars {
		return s
	}
	head, tail := 0, len(s)
	for range policy.HeadChars {
		_, n := utf8.DecodeRuneInString(s[head:])
		head += n
	}
	for range policy.TailChars {
		_, n := utf8.DecodeLastRuneInString(s[:tail])
		tail -= n
	}
	return fmt.Sprintf("%s\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=%d head=%d tail=%d] ...\n%s",
		s[:head], chars, policy.HeadChars, policy.TailChars, s[tail:])
}

// checkAgreement checks that all contestants return the same message. It also warms them up:
// buffers grow, and sonic compiles.
func checkAgreement(contestants []contestant, body []byte) error {
	var messages []map[string]any
	for i, run := range contestants {
		out, err := run(body)
		if err != nil {
			return err
		}
		var message map[string]any
		if err := decode(out, &message); err != nil {
			return err
		}
		messages = append(messages, message)
		if !reflect.DeepEqual(message, messages[0]) {
			return fmt.Errorf("contestant %d returns another message than the first", i)
		}
	}
	return nil
}

// measure returns the speed of each contestant in its best round, in GB/s.
func measure(ctx context.Context, contestants []contestant, body []byte, budget time.Duration) ([]float64, error) {
	const turn, minRounds = 50 * time.Millisecond, 3
	speeds := make([]float64, len(contestants))
	start := time.Now()
	for round := 0; round < minRounds || time.Since(start) < budget; round++ {
		for i, run := range contestants {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			runtime.GC() // do not collect the previous contestant's garbage during this turn
			begin, n := time.Now(), 0
			for n == 0 || time.Since(begin) < turn {
				if _, err := run(body); err != nil {
					return nil, err
				}
				n++
			}
			speeds[i] = max(speeds[i], float64(n*len(body))/1e9/time.Since(begin).Seconds())
		}
	}
	return speeds, nil
}

// allocations returns the allocations of one response: their number and their bytes.
func allocations(run contestant, body []byte) (allocs, bytes float64) {
	const n = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		_, _ = run(body) // did not fail before
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / n, float64(after.TotalAlloc-before.TotalAlloc) / n
}
