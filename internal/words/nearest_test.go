package words

import (
	"slices"
	"testing"
)

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
