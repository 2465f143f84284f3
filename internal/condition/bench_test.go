package condition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// arguments1K returns typical arguments of about 1 KB.
func arguments1K() []byte {
	var b strings.Builder
	b.WriteString(`{"path":"/srv/data/report.txt","limit":25,"options":{"dryRun":true,"tags":["a","b","c"]}`)
	for i := range 10 {
		fmt.Fprintf(&b, `,"member%d":"%s"`, i, strings.Repeat("x", 10))
	}
	fmt.Fprintf(&b, `,"content":"%s"}`, strings.Repeat(`line of text\n`, 50))
	return []byte(b.String())
}

func BenchmarkHolds(b *testing.B) {
	items := `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"id":7,"name":"item"},`, 50), ",") + `]}`
	var members []string
	for i := range 10 {
		members = append(members, fmt.Sprintf(`arguments.member%d.startsWith("xx")`, i))
	}
	for _, test := range []struct {
		name, expression string
		arguments        []byte
	}{
		{"no arguments", `client == "alice" && server in ["files", "mail"] && !annotations.destructiveHint`, arguments1K()},
		{"one member", `arguments.path.startsWith("/srv/")`, arguments1K()},
		{"ten members", strings.Join(members, " && "), arguments1K()},
		{"loop over 50 items", `arguments.items.all(i, i.id < 10)`, []byte(items)},
	} {
		b.Run(test.name, func(b *testing.B) {
			c, err := Compile(test.expression)
			if err != nil {
				b.Fatal(err)
			}
			f := &Facts{Client: "alice", Server: "files", Tool: "read", Annotations: mcp.ReadOnly, Arguments: test.arguments}
			b.ReportAllocs()
			b.SetBytes(int64(len(test.arguments)))
			for b.Loop() {
				if holds, err := c.Holds(f); err != nil || !holds {
					b.Fatal(holds, err)
				}
			}
		})
	}
}

// BenchmarkLargest decodes arguments at the limits.
func BenchmarkLargest(b *testing.B) {
	for _, test := range []struct{ name, arguments string }{
		{"one text", `{"a":"` + strings.Repeat("a", maxArguments-8) + `"}`},
		{"many numbers", `{"a":[` + strings.TrimSuffix(strings.Repeat("1,", maxValues-1), ",") + `]}`},
		{"many objects", `{"a":[` + strings.TrimSuffix(strings.Repeat(`{"a":1},`, maxValues/2-2), ",") + `]}`},
	} {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(test.arguments)))
			for b.Loop() {
				if _, err := decode([]byte(test.arguments), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
