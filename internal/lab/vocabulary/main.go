// Command vocabulary writes the table of token merges for package tokens:
//
//	go -C internal/lab run ./vocabulary [-out ../tokens/o200k_base.merges]
//
// The vocabulary is OpenAI's o200k_base, from the module tiktoken-go-loader.
package main

import (
	"flag"
	"fmt"
	"os"

	loader "github.com/pkoukk/tiktoken-go-loader"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

func main() {
	out := flag.String("out", "../tokens/o200k_base.merges", "`file` to write")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "vocabulary:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	packed, err := pack()
	if err != nil {
		return err
	}
	return os.WriteFile(out, packed, 0o644)
}

func pack() ([]byte, error) {
	ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe("o200k_base.tiktoken")
	if err != nil {
		return nil, err
	}
	merges, err := mergesOf(ranks)
	if err != nil {
		return nil, err
	}
	return tokens.Pack(merges)
}

// mergesOf returns, for each token of more than one byte, the two tokens that it is merged from.
//
// In the vocabulary, two tokens can be merged if their concatenation is a token. But for each
// token, only one such pair occurs: as long as its bytes are not merged with bytes around
// them, they are merged as if they were alone. It is the pair that remains last then.
func mergesOf(ranks map[string]int) ([]tokens.Merge, error) {
	for b := range 256 {
		if rank, ok := ranks[string([]byte{byte(b)})]; !ok || rank >= 256 {
			return nil, fmt.Errorf("byte %#x is not one of the first 256 tokens", b)
		}
	}
	id := func(token string) uint32 {
		if len(token) == 1 {
			return uint32(token[0])
		}
		return uint32(ranks[token])
	}
	merges := make([]tokens.Merge, 0, len(ranks))
	for token := range ranks {
		if len(token) == 1 {
			continue
		}
		left, right, ok := lastPair(token, ranks)
		if !ok {
			return nil, fmt.Errorf("no merges produce token %q", token)
		}
		merges = append(merges, tokens.Merge{Left: id(left), Right: id(right), Token: id(token)})
	}
	return merges, nil
}

// lastPair merges the bytes of a token until two parts are left.
func lastPair(token string, ranks map[string]int) (left, right string, ok bool) {
	parts := make([]string, len(token))
	for i := range len(token) {
		parts[i] = token[i : i+1]
	}
	for len(parts) > 2 {
		lowest, best := len(ranks), -1
		for i := range len(parts) - 1 {
			if rank, ok := ranks[parts[i]+parts[i+1]]; ok && rank < lowest {
				lowest, best = rank, i
			}
		}
		if best < 0 {
			return "", "", false
		}
		parts[best] += parts[best+1]
		parts = append(parts[:best+1], parts[best+2:]...)
	}
	return parts[0], parts[1], true
}
