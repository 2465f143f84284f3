package words

import (
	"slices"
	"strings"
	"testing"
)

func TestTerms(t *testing.T) {
	for _, test := range []struct {
		name, text, want string
	}{
		{"an empty text", "", ""},
		{"no letter or digit", " -- ?!", ""},
		{"lower case", "Read FILE", "read fil"},
		{"snake_case", "read_text_file", "read text fil"},
		{"kebab-case and dots", "git-log.v", "git log v"},
		{"a server and its tool", "files::read__all", "fil read all"},
		{"camelCase, and the unsplit word", "readFile", "read fil readfil"},
		{"an abbreviation in a name", "HTTPServer", "http server httpserver"},
		{"a plural of an abbreviation", "URLs IDs", "url id"},
		{"digits", "base64 s3", "bas 64 base64 s 3 s3"},
		{"stop words", "the list of a file", "list fil"},
		{"a possessive", "user's user’s", "user user"},
		{"accents", "Créer l'été", "créer lété"},
		{"a script without spaces", "读取file文件", "读 取 fil 文 件"},
		{"data", strings.Repeat("x", 250), strings.Repeat("x", 100) + " " + strings.Repeat("x", 100) + " " +
			strings.Repeat("x", 50)},
		{"bytes that are not UTF-8", "a\xffread", "read"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(slices.Collect(Terms(test.text)), " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTermsStopEarly(t *testing.T) {
	const text = "readFile 读 one two2"
	for n := range 8 {
		got := 0
		for range Terms(text) {
			if got++; got == n+1 {
				break
			}
		}
		if got != n+1 {
			t.Errorf("got %d terms, asked for %d", got, n+1)
		}
	}
}

// All forms of a word have the same stem, and Stem does not change a stem.
func TestStem(t *testing.T) {
	for _, forms := range []string{
		"file files filing filed",
		"create creates created creating",
		"query queries queried querying",
		"copy copies copied copying",
		"movie movies",
		"box boxes boxed",
		"search searches searched searching",
		"branch branches",
		"cache caches cached caching",
		"size sizes sized sizing",
		"database databases",
		"alias aliases",
		"status statuses",
		"address addresses addressed addressing",
		"class classes",
		"close closes closed closing",
		"stop stops stopped stopping",
		"set sets setting settings",
		"add adds added adding",
		"bill bills billed billing",
		"embed embeds embedded embedding embeddings",
		"page pages paged paging",
		"issue issues issued issuing",
		"release releases released releasing",
		"id ids",
		"feed feeds feeding",
		"string strings",
	} {
		all := strings.Fields(forms)
		for _, form := range all {
			if got, want := Stem(form), Stem(all[0]); got != want || Stem(got) != got {
				t.Errorf("%s: stem %q, of %s %q", form, got, all[0], want)
			}
		}
	}
	for _, different := range []string{"string str", "feed fe", "process proces", "redis red", "gas ga", "bus bu",
		"été ét", "fill file"} {
		a, b, _ := strings.Cut(different, " ")
		if Stem(a) == Stem(b) {
			t.Errorf("%s and %s have the same stem", a, b)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"files__read_file", "files__read_files", "files__write_file", "files__list", "größe__lesen"}
	for _, tt := range []struct {
		name, wrong string
		want        []string
	}{
		{"a letter is missing", "files__red_file", []string{"files__read_file", "files__read_files", "files__write_file"}},
		{"upper case", "FILES__LIST", []string{"files__list"}},
		{"letters that are not ASCII", "grosse__lesen", []string{"größe__lesen"}},
		{"a part of a name", "write", []string{"files__write_file"}},
		{"no similar name", "search__web", nil},
	} {
		if got := Nearest(tt.wrong, names); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q", tt.name, got)
		}
	}
}

func TestClosest(t *testing.T) {
	known := []string{"max_chars", "tail_chars", "files", "db"}
	for word, want := range map[string]string{
		"maxChars": "max_chars", "fiels": "files", "FILES": "files", "fils": "files", "": "", "x": "", "fs": "", "github": "",
	} {
		if got := Closest(word, known); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}
