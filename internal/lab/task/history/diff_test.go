package history

import (
	"reflect"
	"slices"
	"testing"
)

func TestParseDiff(t *testing.T) {
	for _, test := range []struct {
		name, diff string
		want       []modification
	}{
		{
			name: "changed lines are those of the file before",
			diff: "diff --git a/a.go b/a.go\nindex 1..2 100644\n--- a/a.go\n+++ b/a.go\n@@ -3,2 +3 @@ func f() " +
				"{\n-one\n-two\n+three\n@@ -9 +8 @@\n-x\n+y\n",
			want: []modification{{path: "a.go", changed: []int{3, 4, 9}}},
		},
		{
			name: "inserted lines count for the line before them",
			diff: "diff --git a/a.go b/a.go\n--- a/a.go\n+++ b/a.go\n@@ -0,0 +1 @@\n+first\n@@ -7,0 +9,2 @@\n+a\n+b\n",
			want: []modification{{path: "a.go", inserted: []int{1, 7}}},
		},
		{
			name: "lines may look like a header",
			diff: "diff --git a/a.md b/a.md\n--- a/a.md\n+++ b/a.md\n@@ -5,3 +5,2 @@\n--- a/b.go\n-@@ -1 +1 @@\n-diff " +
				"--git\n+++ b/b.go\n+x\n@@ -20 +19 @@\n-p\n+q\n",
			want: []modification{{path: "a.md", changed: []int{5, 6, 7, 20}}},
		},
		{
			name: "files may end without a line end",
			diff: "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -2 +2 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline " +
				"at end of file\ndiff --git a/b b/b\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-x\n+y\n",
			want: []modification{{path: "a", changed: []int{2}}, {path: "b", changed: []int{1}}},
		},
		{
			name: "a name with spaces ends with a tab",
			diff: "diff --git a/my file.go b/my file.go\n--- a/my file.go\t\n+++ b/my file.go\t\n@@ -1 +1 @@\n-x\n+y\n",
			want: []modification{{path: "my file.go", changed: []int{1}}},
		},
		{
			name: "quoted names and binary files are skipped",
			diff: "diff --git \"a/\\t.go\" \"b/\\t.go\"\n--- \"a/\\t.go\"\n+++ \"b/\\t.go\"\n@@ -1 +1 @@\n-x\n+y\ndiff " +
				"--git a/i.png b/i.png\nBinary files a/i.png and b/i.png differ\n",
		},
		{name: "an empty diff"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := parseDiff(test.diff); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestRelevantLinesOfInsertions(t *testing.T) {
	both := modification{changed: []int{4}, inserted: []int{9}}
	if got := both.relevant(); !slices.Equal(got, []int{4}) {
		t.Errorf("changed and inserted: got %v", got)
	}
	pure := modification{inserted: []int{9}}
	if got := pure.relevant(); !slices.Equal(got, []int{9}) {
		t.Errorf("inserted: got %v", got)
	}
}
