package main

import (
	"bytes"
	"flag"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// encoding is the reference tokenizer.
var encoding = sync.OnceValue(func() *tiktoken.Tiktoken {
	tiktoken.SetBpeLoader(loader.NewOfflineLoader())
	e, err := tiktoken.GetEncoding("o200k_base")
	if err != nil {
		panic(err)
	}
	return e
})

// compare reports whether a text has as many tokens as with the reference tokenizer.
func compare(t *testing.T, name, text string) bool {
	t.Helper()
	got, want := tokens.Count(text), len(encoding().EncodeOrdinary(text))
	if got != want {
		t.Errorf("%s: got %d tokens, want %d; %.300q", name, got, want, text)
	}
	return got == want
}

func TestTableIsUpToDate(t *testing.T) {
	want, err := pack()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../tokens/o200k_base.merges")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the table differs from the output of this command")
	}
}

// TestTokensOfVocabulary counts each token as a text. Some are several pieces; those that are not
// UTF-8 are skipped.
func TestTokensOfVocabulary(t *testing.T) {
	ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe("o200k_base.tiktoken")
	if err != nil {
		t.Fatal(err)
	}
	for token := range ranks {
		if utf8.ValidString(token) {
			compare(t, "token", token)
		}
	}
}

// tiktoken-go is slow, so the two tests of files compare one file in forty. With -every=1, they
// compare all.
var every = flag.Int("every", 40, "compare every `n`th file")

func TestTextsOfThisRepository(t *testing.T) {
	compareTree(t, "../../..", "", *every)
}

func TestTextsOfGo(t *testing.T) {
	compareTree(t, goSources(t), ".go", *every)
}

// goSources returns the directory of Go's standard library.
func goSources(t testing.TB) string {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(root)), "src")
}

// compareTree compares every nth text below a directory whose name ends with suffix.
func compareTree(t *testing.T, root, suffix string, every int) {
	found, files, size := 0, 0, 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			switch entry.Name() {
			case ".git", "node_modules", "bin", "dist", "cmd", "vendor":
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular() || !strings.HasSuffix(path, suffix):
			return nil
		}
		found++
		if found%every != 0 {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || len(text) > 1<<20 || bytes.IndexByte(text, 0) >= 0 {
			return err
		}
		files, size = files+1, size+len(text)
		compare(t, path, string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files, %d bytes", files, size)
}

// alphabets are the characters of random texts. Unlike tiktoken, tiktoken-go does not treat 'ſ
// as 's, so ſ is not among them.
var alphabets = []string{
	" \t\n\r\v\f\u0085\u00a0\u1680\u2003\u2028\u3000",
	"  \n",
	"abcxyz", "ABCXYZ", "0123456789", "²½٣४Ⅷ㊈",
	"'sStTmMdDrReEvVlL",
	".,;:!?()[]{}<>/\\|@#$%^&*-_=+~`\"'", "/\r\n", "=-*#/",
	"äöüßéñçøåœ", "ÄÖÜÉÑÇØÅŒ", "ǅǈᾈ", "ʰʲˑªºー々",
	"абвгдежз", "АБВГДЕЖЗ", "αβγδ", "ΑΒΓΔ",
	"中文字符日本語漢字", "ひらがなカタカナ", "한국어조선말",
	"אבגד", "ابتث", "ไทยภาษา", "हिन्दीक्षि",
	"\u0301\u0308\u0323\u20dd\u0903\ufe0f\u200d", "👍🏽👩‍💻🇩🇪😀", "“”‘’–—…€£¥©®™",
	"\x00\x01\x7f\u0080\u200b\ufeff\ufffd\ue000\U0010ffff",
}

// randomText returns a text of words, each with characters of one alphabet or with any characters.
func randomText(random *rand.Rand) string {
	var b strings.Builder
	for range 1 + random.IntN(12) {
		letters := []rune(alphabets[random.IntN(len(alphabets))])
		wild := random.IntN(20) == 0
		for range 1 + random.IntN(1+random.IntN(12)) {
			r := letters[random.IntN(len(letters))]
			if wild {
				r = rune(random.IntN(utf8.MaxRune))
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}

func TestRandomTexts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		if !compare(t, "random", randomText(random)) {
			break
		}
	}
}

// TestRandomBytes checks that each byte that is not UTF-8 counts as U+FFFD.
func TestRandomBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 5_000 {
		text := []byte(randomText(random))
		for range 1 + random.IntN(4) {
			text[random.IntN(len(text))] = byte(random.Uint32())
		}
		if !compare(t, "random", string(text)) {
			break
		}
	}
}

// TestLongPieces checks long pieces, which are merged in parts.
func TestLongPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, unit := range []string{"a", " ", "\n", "=", "-", "ab", "aab", "the", "abc", "lo", "中", "中文", "zzzy", "哈",
		"\n ", "()", "=-", "ing", "ation"} {
		for range 3 {
			compare(t, unit, strings.Repeat(unit, 1+random.IntN(4000/len(unit))))
		}
	}
	for _, letters := range alphabets {
		runes := []rune(letters)
		for n := range len(runes) {
			var b strings.Builder
			for b.Len() < 3000 {
				b.WriteRune(runes[random.IntN(n+1)])
			}
			if !compare(t, "long", b.String()) {
				break
			}
		}
	}
}
