package integration

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	caddycore "github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore/redis"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/toolresultmask"
)

// A directive is a Caddyfile directive with its page, and the file in which its block is adapted.
type directive struct {
	name   string
	page   string
	module caddycore.Module
	guest  caddycore.Module  // its subdirectives are in the block, too; nil if none
	file   string            // a Caddyfile with "…" where the block's content goes
	fields map[string]string // subdirective names by JSON field, where they differ
}

var directives = []directive{
	{"mcp_gateway", "docs/mcp_gateway.md", new(mcpgateway.Handler), nil,
		siteWith("mcp_gateway {\n…\nserver sample {\nmcp_sample\n}\n}"),
		map[string]string{"servers": "server answer", "clients": "client", "rates": "rate",
			"notification_routes":   "route_notifications",
			"allow_unauthenticated": "" /* auth none */}},
	{"transport mcp_stdio", "docs/mcp_stdio.md", new(mcpstdio.Transport), nil,
		siteWith("reverse_proxy tools:1 {\ntransport mcp_stdio true {\n…\n}\n}"),
		map[string]string{"command": "", "inherit_env": ""}},
	{"observation_mask", "docs/observation_mask.md", new(observationmask.Handler), nil,
		siteWith("observation_mask {\n…\n}"), nil},
	{"tool_result_mask", "docs/tool_result_mask.md", new(toolresultmask.Handler), nil,
		siteWith("tool_result_mask {\n…\n}"), nil},
	{"mcp_pruner", "docs/mcp_pruner.md", new(mcppruner.Handler), nil, siteWith("mcp_pruner {\n…\n}"), nil},
	{"mcp_store", "docs/scale.md", new(mcpstore.App), new(redis.Redis),
		"{\nmcp_store redis redis://127.0.0.1:1 {\nsession_key 0123456789abcdef0123456789abcdef\n…\n}\n}\n",
		map[string]string{"engine": "", "url": "", "addresses": ""}},
}

// siteWith returns a Caddyfile with a directive.
func siteWith(directive string) string { return ":0 {\n" + directive + "\n}\n" }

// provisioned returns the module of a block as Caddy runs it, with all defaults filled in.
func (d directive) provisioned(t *testing.T, block string) string {
	t.Helper()
	file := strings.Replace(d.file, "…", block, 1)
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(file), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	ctx, err := caddycore.ProvisionContext(new(caddycore.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddycore.NewContext(ctx)
	defer cancel()
	var raw json.RawMessage
	id := d.module.CaddyModule().ID
	key := id.Name()
	walk(t, config, func(object map[string]json.RawMessage) {
		if app, is := object[key]; is && id.Namespace() == "" {
			raw = app
		}
		for _, kind := range []string{"handler", "protocol"} {
			if string(object[kind]) == `"`+key+`"` {
				delete(object, kind)
				raw = caddyconfig.JSON(object, nil)
			}
		}
	})
	module, err := ctx.LoadModuleByID(string(id), raw)
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	return string(caddyconfig.JSON(module, nil))
}

// walk visits every object of a configuration.
func walk(t *testing.T, config json.RawMessage, visit func(map[string]json.RawMessage)) {
	t.Helper()
	var object map[string]json.RawMessage
	var array []json.RawMessage
	switch {
	case json.Unmarshal(config, &object) == nil:
		for _, value := range object {
			walk(t, value, visit)
		}
		visit(object)
	case json.Unmarshal(config, &array) == nil:
		for _, value := range array {
			walk(t, value, visit)
		}
	}
}

// subdirectives returns the subdirectives for the JSON fields of the module.
func (d directive) subdirectives() (names []string) {
	for _, module := range []caddycore.Module{d.module, d.guest} {
		if module == nil {
			continue
		}
		for field := range reflect.TypeOf(module).Elem().Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if others, is := d.fields[name]; is {
				name = others
			}
			names = append(names, strings.Fields(name)...)
		}
	}
	return names
}

// directivesPage shows every directive with its defaults.
const directivesPage = "docs/directives.md"

// An option is a subdirective on that page.
type option struct {
	name      string
	value     string // its default
	commented bool   // it has no default
}

var optionLine = regexp.MustCompile(`^\t(# )?([a-z_]+)(?:, ([a-z_]+))?\s*([^#]*?)\s*(?:#.*)?\n$`)

// optionsOf returns the block of a directive on directivesPage, and its options.
func optionsOf(t *testing.T, d directive) (block string, options []option) {
	t.Helper()
	_, section, _ := strings.Cut(pages(t)[directivesPage], "\n## `"+d.name+"`\n")
	_, block, _ = strings.Cut(section, "\n```caddyfile\n"+d.name)
	_, block, _ = strings.Cut(block, "\n")
	block, _, found := strings.Cut(block, "}\n```\n")
	if !found {
		t.Fatalf("%s does not show the directive", directivesPage)
	}
	for line := range strings.Lines(block) {
		parts := optionLine.FindStringSubmatch(line)
		if parts == nil {
			t.Fatalf("unexpected line %q", line)
		}
		for _, name := range parts[2:4] {
			if name != "" {
				options = append(options, option{name, parts[4], parts[1] != ""})
			}
		}
	}
	return block, options
}

// The page shows every directive with its defaults. Writing a default changes nothing, and no
// subdirective is missing.
func TestEveryDirective(t *testing.T) {
	isolate(t)
	for _, d := range directives {
		t.Run(d.name, func(t *testing.T) {
			block, options := optionsOf(t, d)
			same(t, d.provisioned(t, block), d.provisioned(t, ""))
			var shown []string
			for _, o := range options {
				shown = append(shown, o.name)
			}
			slices.Sort(shown)
			want := d.subdirectives()
			slices.Sort(want)
			if got := slices.Compact(shown); !slices.Equal(got, want) {
				t.Errorf("want\n%s\ngot\n%s", want, got)
			}
		})
	}
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// The page of a directive has a row for each subdirective, with the same default as directivesPage.
func TestDirectivePages(t *testing.T) {
	isolate(t)
	for _, d := range directives {
		t.Run(d.name, func(t *testing.T) {
			page, err := os.ReadFile("../../../" + d.page)
			if err != nil {
				t.Fatal(err)
			}
			defaults := map[string]string{}
			column := 0
			for line := range strings.Lines(string(page)) {
				cells := strings.Split(strings.Trim(line, "|\n"), "|")
				if strings.HasPrefix(line, "| subdirective |") {
					column = slices.IndexFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "default" })
				}
				names := codeSpan.FindAllStringSubmatch(cells[0], -1)
				if !strings.HasPrefix(line, "| `") || len(cells) <= column {
					continue
				}
				values := strings.Split(strings.ReplaceAll(cells[column], "`", ""), ", ")
				for i, name := range names {
					defaults[name[1]] = strings.TrimSpace(values[min(i, len(values)-1)])
				}
			}
			_, options := optionsOf(t, d)
			for _, o := range options {
				got, found := defaults[o.name]
				switch {
				case !found:
					t.Errorf("%s: no row", o.name)
				case !o.commented && got != strings.Trim(o.value, `"`) && got != "as above":
					t.Errorf("%s: %s has %q, its page %q", o.name, directivesPage, o.value, got)
				}
			}
		})
	}
}
