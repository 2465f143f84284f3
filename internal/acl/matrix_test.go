package acl

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// matrix has policies, written as rules and a default, with rows for each: a name, and the
// decision (+ is allow, - is deny, ? is confirm), the kind, the server, and the name or URI.
var matrix = []struct {
	policy string
	rows   [][2]string
}{
	{"allow", [][2]string{
		{"a server", "+ server alpha"},
		{"a tool", "+ tool alpha echo"},
		{"a prompt", "+ prompt alpha echo"},
		{"a resource", "+ resource alpha file:///x"},
		{"a template", "+ template alpha file:///{x}"},
		{"an invalid URI", "+ resource alpha %zz"},
		{"no restrictions", "- restricts alpha"},
	}},
	{"deny", [][2]string{
		{"a server", "- server alpha"},
		{"a tool", "- tool alpha echo"},
		{"a prompt", "- prompt alpha echo"},
		{"a resource", "- resource alpha file:///x"},
		{"a template", "- template alpha file:///{x}"},
		{"everything is restricted", "+ restricts alpha"},
	}},
	{"deny beta::*, allow", [][2]string{ // A53
		{"the server is not contacted", "- server beta"},
		{"its tools", "- tool beta echo"},
		{"its prompts", "- prompt beta echo"},
		{"its resources", "- resource beta file:///x"},
		{"its resources with an invalid URI", "- resource beta %zz"},
		{"its templates", "- template beta note:{x}"},
		{"a tool without a name", "- tool beta "},
		{"another server", "+ server alpha"},
		{"a tool of another server", "+ tool alpha echo"},
		{"a server with a longer name", "+ server betas"},
		{"a server with a shorter name", "+ server bet"},
		{"a server in another case", "+ server Beta"},
		{"a tool of a server in another case", "+ tool BETA echo"},
		{"a tool with the name of the server", "+ tool alpha beta::x"},
		{"a resource of another server", "+ resource alpha %zz"},
		{"the server is restricted", "+ restricts beta"},
		{"another server is not restricted", "- restricts alpha"},
	}},
	{"allow beta::*, deny", [][2]string{
		{"the server", "+ server beta"},
		{"its tools", "+ tool beta echo"},
		{"its prompts", "+ prompt beta echo"},
		{"its resources with any URI", "+ resource beta %zz"},
		{"its templates", "+ template beta {x}"},
		{"the server is not restricted", "- restricts beta"},
		{"another server", "- server alpha"},
		{"a server with a longer name", "- server betas"},
		{"a server in another case", "- server Beta"},
	}},
	{"deny be*::*, allow", [][2]string{
		{"a server with the prefix", "- server beta"},
		{"the prefix itself", "- server be"},
		{"its resources", "- resource bert file:///x"},
		{"its prompts", "- prompt beta p"},
		{"a server without the prefix", "+ server abe"},
	}},
	{"deny *::**, allow", [][2]string{
		{"several stars match like one", "- server alpha"},
		{"resources", "- resource alpha note:x"},
	}},
	{"allow a::*, deny", [][2]string{
		{"the server", "+ tool a x"},
		{"a tool of a server with a longer name", "- tool ab x"},
		{"a server with a longer name", "- server ab"},
		{"a server without a name", "- tool  x"},
	}},
	{"deny alpha::slow, allow", [][2]string{ // A54
		{"the tool", "- tool alpha slow"},
		{"another tool", "+ tool alpha echo"},
		{"a tool in another case", "+ tool alpha Slow"},
		{"a longer name", "+ tool alpha slower"},
		{"a name with a prefix", "+ tool alpha so-slow"},
		{"a prompt of that name", "+ prompt alpha slow"},
		{"a resource", "+ resource alpha slow:x"},
		{"a resource with an invalid URI", "+ resource alpha %"},
		{"the tool of another server", "+ tool beta slow"},
		{"the server is contacted", "+ server alpha"},
		{"the server is restricted", "+ restricts alpha"},
		{"another server is not restricted", "- restricts beta"},
	}},
	{"allow alpha::slow*, deny", [][2]string{
		{"the tool", "+ tool alpha slow"},
		{"a tool with the prefix", "+ tool alpha slow_down"},
		{"a tool without the prefix", "- tool alpha so_slow"},
		{"a prompt of that name", "- prompt alpha slow"},
		{"a resource", "- resource alpha file:///slow"},
		{"a template", "- template alpha {slow}"},
		{"the server is contacted", "+ server alpha"},
		{"another server is not contacted", "- server beta"},
	}},
	{"deny *::*_*_file, allow", [][2]string{
		{"every star matches something", "- tool fs read_text_file"},
		{"stars match nothing", "- tool fs __file"},
		{"a missing underscore", "+ tool fs read_file"},
		{"a longer name", "+ tool fs read_text_files"},
		{"a server without a name", "- tool  a_b_file"},
		{"characters beyond ASCII", "- tool fs lösche_große_file"},
	}},
	{"deny fs::ab*ba, allow", [][2]string{
		{"an overlapping prefix and suffix", "+ tool fs aba"},
		{"an adjacent prefix and suffix", "- tool fs abba"},
	}},
	{"deny fs::a::b, allow", [][2]string{
		{"a tool with :: in its name", "- tool fs a::b"},
		{"a server with :: in its name", "+ tool fs::a b"},
		{"a part of the name", "+ tool fs a"},
	}},
	{"deny fs::[a-z]?, allow", [][2]string{
		{"the literal name", "- tool fs [a-z]?"},
		{"a character class has no meaning", "+ tool fs ax"},
	}},
	{"deny fs::größe, allow", [][2]string{
		{"characters beyond ASCII", "- tool fs größe"},
		{"in another case", "+ tool fs GRÖSSE"},
	}},
	{"deny tool::x, allow", [][2]string{
		{"a server called tool", "- tool tool x"},
		{"another server", "+ tool alpha x"},
	}},
	{"deny tool:alpha::*, allow", [][2]string{
		{"all tools", "- tool alpha x"},
		{"prompts", "+ prompt alpha x"},
		{"resources", "+ resource alpha file:///x"},
		{"the server is contacted", "+ server alpha"},
	}},
	{"allow tool:alpha::*, deny tool:alpha::x, allow", [][2]string{
		{"an allowed tool is not restricted by a later rule", "- restricts alpha"},
		{"the first rule decides", "+ tool alpha x"},
	}},
	{"deny prompt:alpha::p*, allow", [][2]string{
		{"the prompt", "- prompt alpha plan"},
		{"another prompt", "+ prompt alpha a plan"},
		{"a tool of that name", "+ tool alpha plan"},
		{"a prompt of another server", "+ prompt beta plan"},
	}},
	{"deny tool:a::*, deny prompt:a::*, deny resource:a::*, allow", [][2]string{
		{"a server of which all kinds are denied", "- server a"},
		{"another server", "+ server b"},
	}},
	{"allow tool:*::x, deny *, allow", [][2]string{
		{"a tool that was allowed before", "+ tool a x"},
		{"another tool", "- tool a y"},
		{"a server that may have an allowed tool", "+ server a"},
	}},
	{"deny alpha::*, allow alpha::echo, allow", [][2]string{
		{"the first rule denies", "- tool alpha echo"},
		{"the server is not contacted", "- server alpha"},
	}},
	{"allow alpha::echo, deny alpha::*, allow", [][2]string{
		{"the first rule allows", "+ tool alpha echo"},
		{"the second rule denies other tools", "- tool alpha slow"},
		{"the second rule denies prompts", "- prompt alpha echo"},
		{"the server is contacted", "+ server alpha"},
		{"the default decides on other servers", "+ tool beta slow"},
	}},
	{"allow alpha::*, deny *, allow", [][2]string{
		{"everything of the allowed server", "+ resource alpha %zz"},
		{"another server is not contacted", "- server beta"},
		{"the allowed server is not restricted", "- restricts alpha"},
		{"another server is restricted", "+ restricts beta"},
	}},
	{"allow read_only, deny", [][2]string{
		{"a read-only tool", "+ reader alpha get"},
		{"a tool without annotations", "- tool alpha get"},
		{"a tool that only adds", "- adder alpha put"},
		{"a read-only tool of another server", "+ reader beta x"},
		{"a prompt", "- prompt alpha x"},
		{"a resource", "- resource alpha file:///x"},
		{"the server is contacted", "+ server alpha"},
		{"the server is restricted", "+ restricts alpha"},
	}},
	{"deny destructive, allow", [][2]string{
		{"a tool without annotations", "- tool alpha x"},
		{"a read-only tool", "+ reader alpha x"},
		{"a tool that only adds", "+ adder alpha x"},
		{"a prompt", "+ prompt alpha x"},
		{"a resource", "+ resource alpha file:///x"},
		{"the server is restricted", "+ restricts alpha"},
	}},
	{"allow read_only:files::get_*, allow idempotent:db::*, deny", [][2]string{
		{"a read-only tool that matches", "+ reader files get_x"},
		{"a tool that matches, but is not read-only", "- tool files get_x"},
		{"another name", "- reader files list"},
		{"another server", "- reader db get_x"},
		{"another annotation", "+ adder db put"},
		{"another server is not contacted", "- server web"},
	}},
	{"deny open_world, allow", [][2]string{
		{"a tool without annotations", "- tool web get"},
		{"a tool with a closed world", "+ adder web get"},
	}},
	{"deny alpha::secret, allow read_only, confirm destructive, deny", [][2]string{
		{"the first rule", "- reader alpha secret"},
		{"the second rule", "+ reader alpha get"},
		{"the third rule", "? tool alpha get"},
		{"the default", "- adder alpha put"},
		{"a prompt is not confirmed", "- prompt alpha get"},
	}},
	{"confirm files::*, allow", [][2]string{
		{"a tool", "? tool files x"},
		{"a read-only tool", "? reader files x"},
		{"a prompt", "+ prompt files x"},
		{"a resource", "+ resource files file:///x"},
		{"a tool of another server", "+ tool web x"},
		{"the server is restricted", "+ restricts files"},
		{"another server is not restricted", "- restricts web"},
	}},
	{"confirm *, deny", [][2]string{
		{"a tool", "? tool files x"},
		{"the default decides on a prompt", "- prompt files x"},
		{"the server is contacted", "+ server files"},
	}},
	{"deny * when arguments.path.startsWith('/etc'), allow", [][2]string{
		{"a tool is listed", "+ tool files read"},
		{"a call that meets the condition", `- call files read {"path":"/etc/passwd"}`},
		{"a call that does not", `+ call files read {"path":"/srv/x"}`},
		{"a call without the argument", "- call files read {}"},
		{"a call without arguments", "- call files read"},
		{"an argument of another type", `- call files read {"path":7}`},
		{"a repeated argument", `- call files read {"path":"/srv","path":"/etc"}`},
		{"invalid JSON", `- call files read {"path":`},
		{"a prompt", "+ prompt files x"},
		{"a resource", "+ resource files file:///etc/passwd"},
		{"the server is restricted", "+ restricts files"},
	}},
	{"deny db::* when client=='' && server=='db', allow", [][2]string{
		{"a condition without arguments hides a tool", "- tool db query"},
		{"the tool cannot be called", "- call db query {}"},
		{"another server", "+ tool files query"},
		{"the server is contacted for prompts and resources", "+ server db"},
	}},
	{"allow db::query when arguments.limit<=100, deny", [][2]string{
		{"the tool is listed", "+ tool db query"},
		{"a call that meets the condition", `+ call db query {"limit":100}`},
		{"a call that does not", `- call db query {"limit":101}`},
		{"a call without the argument", "- call db query {}"},
		{"another tool", "- tool db drop"},
		{"the server is contacted", "+ server db"},
		{"another server is not contacted", "- server web"},
	}},
	{"confirm files::* when arguments.size()>1, allow", [][2]string{
		{"a tool of a client that can confirm", "? asked files x"},
		{"a tool of a client that cannot", "+ tool files x"},
		{"a call that meets the condition", `? call files x {"a":1,"b":2}`},
		{"a call that does not", `+ call files x {"a":1}`},
	}},
	{"allow * when annotations.readOnlyHint, deny", [][2]string{
		{"a read-only tool", "+ reader files x"},
		{"a tool without annotations", "- tool files x"},
		{"a tool that only adds", "- adder files x"},
	}},
	{"deny read_only::x, allow", [][2]string{
		{"a server with the name of an annotation", "- tool read_only x"},
		{"another server", "+ reader alpha x"},
	}},
	{"deny resource:file:///secret, allow", [][2]string{ // A55
		{"the prefix itself", "- resource fs file:///secret"},
		{"with a slash", "- resource fs file:///secret/"},
		{"with slashes", "- resource fs file:///secret///"},
		{"below it", "- resource fs file:///secret/x"},
		{"far below it", "- resource fs file:///secret/x/y/z.txt"},
		{"another server", "- resource other file:///secret/x"},
		{"a longer name", "+ resource fs file:///secrets"},
		{"an extension", "+ resource fs file:///secret.txt"},
		{"a longer name with a path", "+ resource fs file:///secrets/x"},
		{"a shorter name", "+ resource fs file:///secre"},
		{"the name elsewhere", "+ resource fs file:///pub/secret"},
		{"the root", "+ resource fs file:///"},
		{"another scheme", "+ resource fs note:///secret"},
		{"the scheme in another case", "- resource fs FILE:///secret/x"},
		{"the path in another case", "- resource fs file:///SECRET/x"},
		{"the path with a letter of another alphabet", "- resource fs file:///\u017fecret/x"},
		{"one slash", "- resource fs file:/secret/x"},
		{"no slash", "- resource fs file:secret/x"},
		{"four slashes", "- resource fs file:////secret/x"},
		{"this host", "- resource fs file://localhost/secret/x"},
		{"this host in another case", "- resource fs file://LocalHost/secret/x"},
		{"a host that the server may ignore", "- resource fs file://elsewhere/secret/x"},
		{"a host of dots", "- resource fs note://../x"},
		{"a host with an escaped NUL", "- resource fs note://a%00b/x"},
		{"a host escaped too many times", "- resource fs note://%25252525252541/x"},
		{"a query escaped too many times", "- resource fs note:x?%25252525252541"},
		{"dots as the host", "- resource fs file://../secret/x"},
		{"a host with an escaped slash", "- resource fs file://a%2fsecret/x"},
		{"a query", "- resource fs file:///secret?x"},
		{"a query after a slash", "- resource fs file:///secret/?x=1"},
		{"a fragment", "- resource fs file:///secret#x"},
		{"a query below", "- resource fs file:///secret/x?y#z"},
		{"a query elsewhere", "+ resource fs file:///pub?file:///secret"},
		{"a fragment elsewhere", "+ resource fs file:///pub#/secret"},
		{"a query with .. in it", "- resource fs file:///pub?/../secret/x"},
		{"a fragment with .. in it", "- resource fs file:///pub#/%2e%2e/secret/x"},
		{"an escaped query", "- resource fs file:///secret%3fx"},
		{"an escaped fragment", "- resource fs file:///secret%23/x"},
		{"an escaped fragment that hides ..", "- resource fs file:///secret/x%23/../../pub"},
		{"an escaped letter", "- resource fs file:///%73ecret/x"},
		{"all letters escaped", "- resource fs file:///%73%65%63%72%65%74"},
		{"escaped twice", "- resource fs file:///%2573ecret/x"},
		{"escaped three times", "- resource fs file:///%252573ecret/x"},
		{"escaped too many times", "- resource fs file:///pub/%25252525252525252573"},
		{"64 KiB", "+ resource fs file:///pub/" + strings.Repeat("a", maxURI-len("file:///pub/"))},
		{"more than 64 KiB", "- resource fs file:///pub/" + strings.Repeat("a", maxURI)},
		{"an escaped slash", "- resource fs file:///secret%2fx"},
		{"an escaped slash in capitals", "- resource fs file:///secret%2Fx"},
		{"an escaped slash in front", "- resource fs file://%2fsecret/x"},
		{"a slash escaped twice", "- resource fs file:///secret%252Fx"},
		{"a backslash", `- resource fs file:///secret\x`},
		{"backslashes only", `- resource fs file:\\\secret\x`},
		{"an escaped backslash", "- resource fs file:///secret%5Cx"},
		{"an overlong slash", "- resource fs file:///secret%c0%afx"},
		{"overlong dots", "- resource fs file:///pub/%c0%ae%c0%ae/secret"},
		{"an invalid escape", "- resource fs file:///pub/%zz"},
		{"an incomplete escape", "- resource fs file:///pub/%2"},
		{"a percent sign at the end", "- resource fs file:///pub/100%"},
		{"an escaped percent sign", "+ resource fs file:///pub/100%25"},
		{"an escape of another kind", "- resource fs file:///%u0073ecret"},
		{"NUL", "- resource fs file:///pub\x00"},
		{"an escaped NUL", "- resource fs file:///pub%00.txt"},
		{"a line break that programs may remove", "- resource fs file:///sec\nret"},
		{"a tab that programs may remove", "- resource fs file:///sec\tret"},
		{"an escaped line break", "- resource fs file:///pub/a%0Ab"},
		{"an escaped line break in a query", "+ resource fs file:///pub/a?b=%0A"},
		{"an escaped delete", "- resource fs file:///pub/%7f"},
		{"invalid UTF-8", "- resource fs file:///pub/\xff"},
		{"escapes of invalid UTF-8", "- resource fs file:///pub/%E9"},
		{"up and down", "- resource fs file:///pub/../secret/x"},
		{"up and down in escapes", "- resource fs file:///pub/%2e%2e/secret/x"},
		{"up and down, partly in escapes", "- resource fs file:///pub/.%2E/secret/x"},
		{"up and down escaped twice", "- resource fs file:///pub/%252e%252e/secret/x"},
		{"up and down by escaped slashes", "- resource fs file:///pub%2f..%2fsecret/x"},
		{"up and down by backslashes", `- resource fs file:///pub\..\secret\x`},
		{"up and down by escaped backslashes", "- resource fs file:///pub%5c..%5csecret"},
		{"up and down with parameters", "- resource fs file:///pub/..;/secret/x"},
		{"up and down with a space", "- resource fs file:///pub/..%20/secret/x"},
		{"three dots", "- resource fs file:///pub/.../secret"},
		{"out of it", "+ resource fs file:///secret/../pub"},
		{"out of it in escapes", "+ resource fs file:///secret/%2e%2e/pub"},
		{"out of it in escapes in capitals", "+ resource fs file:///secret/%2E%2e/pub"},
		{"out of it, if slashes are decoded", "- resource fs file:///secret/..%2fpub"},
		{"out of it, if decoded twice", "- resource fs file:///secret/%252e%252e/pub"},
		{"out of it, if empty segments are dropped", "- resource fs file:///secret//../pub"},
		{"above the root", "- resource fs file:///../../secret/x"},
		{"above the root and elsewhere", "+ resource fs file:///../../pub"},
		{"a dot", "- resource fs file:///./secret/./x"},
		{"an escaped dot", "- resource fs file:///%2e/secret"},
		{"empty segments", "- resource fs file://///secret//x"},
		{"an empty segment with parameters", "- resource fs file:///;a=b/secret/x"},
		{"parameters", "- resource fs file:///secret;a=b/x"},
		{"an NTFS stream", "- resource fs file:///secret::$DATA"},
		{"a dot at the end", "- resource fs file:///secret./x"},
		{"a space at the end", "- resource fs file:///secret "},
		{"an escaped space at the end", "- resource fs file:///secret%20/x"},
		{"an invisible character", "- resource fs file:///sec\u200dret/x"},
		{"a space before the URI", "- resource fs  file:///secret"},
		{"no scheme", "- resource fs /secret/x"},
		{"no scheme, elsewhere", "- resource fs pub/x"},
		{"an escaped scheme", "- resource fs %66ile:///secret"},
		{"an escaped colon", "- resource fs file%3A///secret"},
		{"a Windows path", `- resource fs c:\secret\x`},
		{"an empty URI", "- resource fs "},
		{"a name that begins with an escaped number sign", "+ resource fs slack://team/%23general"},
		{"an opaque URI", "+ resource fs urn:isbn:123"},
		{"a tool with this name", "+ tool fs file:///secret"},
		{"a prompt with this name", "+ prompt fs secret"},
		{"the server is contacted", "+ server fs"},
		{"the server is restricted", "+ restricts fs"},
	}},
	{"deny resource:FILE://localhost/%73ecret/./a/../, allow", [][2]string{
		{"another spelling of the prefix", "- resource fs file:///secret/x"},
		{"a longer name", "+ resource fs file:///secrets"},
	}},
	{"deny resource:file:///, allow", [][2]string{
		{"all files", "- resource fs file:///x"},
		{"files of a host", "- resource fs file://host/x"},
		{"the root", "- resource fs file:///"},
		{"the scheme", "- resource fs file:"},
		{"another scheme", "+ resource fs files:///x"},
	}},
	{"allow resource:file:///pub, deny", [][2]string{
		{"the prefix itself", "+ resource fs file:///pub"},
		{"with a slash", "+ resource fs file:///pub/"},
		{"below it", "+ resource fs file:///pub/a b/c.txt"},
		{"the scheme in another case", "+ resource fs File:///pub/x"},
		{"this host", "+ resource fs file://LOCALHOST/pub/x"},
		{"one slash", "+ resource fs file:/pub/x"},
		{"no slash", "- resource fs file:pub/x"},
		{"escapes", "+ resource fs file:///%70ub/%41"},
		{"a query", "+ resource fs file:///pub?x=1"},
		{"a fragment", "+ resource fs file:///pub/x#y"},
		{"backslashes", `+ resource fs file:///pub\x`},
		{"into it", "+ resource fs file:///x/../pub/y"},
		{"into it by an escaped slash", "- resource fs file:///x/..%2fpub/y"},
		{"into it by double escapes", "- resource fs file:///x/%252e%252e/pub/y"},
		{"the path in another case", "- resource fs file:///PUB/x"},
		{"a longer name", "- resource fs file:///public"},
		{"an extension", "- resource fs file:///pub.key"},
		{"a name with an escaped query", "- resource fs file:///pub%3fx"},
		{"a name with a space", "- resource fs file:///pub%20/x"},
		{"a host", "- resource fs file://host/pub/x"},
		{"a host of that name", "- resource fs file://pub/x"},
		{"out of it", "- resource fs file:///pub/../secret"},
		{"out of it in escapes", "- resource fs file:///pub/%2E%2E/secret"},
		{"out of it by an escaped slash", "- resource fs file:///pub/..%2fsecret"},
		{"out of it by a backslash", `- resource fs file:///pub\..\secret`},
		{"out of it in a query", "- resource fs file:///pub?/../secret"},
		{"an invalid URI", "- resource fs file:///pub/%"},
		{"a NUL", "- resource fs file:///pub/%00"},
		{"tools", "- tool fs read"},
		{"the server is contacted", "+ server fs"},
	}},
	{"allow resource:file:///, deny", [][2]string{
		{"all files", "+ resource fs file:///x"},
		{"files of a host", "+ resource fs file://host/x"},
		{"another scheme", "- resource fs note:x"},
	}},
	{"deny resource:file:///a/b, allow resource:file:///a, deny", [][2]string{
		{"the narrow prefix first", "- resource fs file:///a/b/c"},
		{"then the wide prefix", "+ resource fs file:///a/c"},
		{"then the default", "- resource fs file:///c"},
		{"a deny rule ignores case", "- resource fs file:///a/B/c"},
		{"an allow rule does not ignore case", "- resource fs file:///A/c"},
	}},
	{"allow resource:file:///a/b, deny resource:file:///a, allow", [][2]string{
		{"the narrow prefix first", "+ resource fs file:///a/b/c"},
		{"an allow rule does not ignore case", "- resource fs file:///a/B/c"},
		{"then the wide prefix", "- resource fs file:///a/c"},
		{"then the default", "+ resource fs file:///c"},
	}},
	{"deny resource:alpha::file:///x, allow", [][2]string{
		{"a resource of the server", "- resource alpha file:///x/y"},
		{"a resource of another server", "+ resource beta file:///x/y"},
		{"an invalid URI of another server", "+ resource beta %"},
		{"an invalid URI of the server", "- resource alpha %"},
		{"the server is restricted", "+ restricts alpha"},
		{"another server is not restricted", "- restricts beta"},
	}},
	{"deny resource:al*::*, allow", [][2]string{
		{"any resource of the servers", "- resource alpha any:thing"},
		{"a resource of another server", "+ resource beta any:thing"},
		{"tools", "+ tool alpha x"},
		{"templates", "- template alpha {+x}"},
	}},
	{"deny resource:file:///a/b, allow resource:file:///a, deny resource:note:x, allow", [][2]string{
		{"everything below the narrow prefix", "- everything fs file:///a/b/{x}"},
		{"everything above it", "- everything fs file:///a/{x}"},
		{"everything next to it", "+ everything fs file:///a/c/{x}"},
		{"everything next to both", "+ everything fs file:///c/{x}"},
		{"everything of a scheme", "- everything fs note:{x}"},
		{"every URI", "- everything fs {+x}"},
		{"in another spelling", "- everything fs FILE:///A/{x}"},
		{"a single URI", "+ everything fs file:///a/c"},
		{"a denied URI", "- everything fs file:///a/b"},
		{"an invalid beginning", "- everything fs file:///%zz/{x}"},
		{"everything of a host", "+ everything fs https://h.example/{x}"},
	}},
	{"allow resource:file:///a, deny", [][2]string{
		{"everything below it", "+ everything fs file:///a/{x}"},
		{"everything above it", "- everything fs file:///{x}"},
	}},
	{"deny resource:al*::file:///a, allow", [][2]string{
		{"everything of another server", "+ everything beta {+x}"},
	}},
	{"deny resource:note:abc, allow", [][2]string{
		{"the note", "- resource n note:abc"},
		{"below it", "- resource n note:abc/d"},
		{"a part of it", "- resource n note:abc:d"},
		{"with slashes", "- resource n note:///abc"},
		{"as a host", "- resource n note://abc"},
		{"in another case", "- resource n NOTE:ABC"},
		{"another note", "+ resource n note:abcd"},
	}},
	{"allow resource:urn:isbn, deny", [][2]string{
		{"colons separate parts of an opaque URI", "+ resource n urn:isbn:123"},
		{"no separator", "- resource n urn:isbn123"},
		{"another namespace", "- resource n urn:issn:123"},
	}},
	{"allow resource:memo://insights, deny", [][2]string{
		{"the host", "+ resource m memo://insights"},
		{"with a slash", "+ resource m memo://insights/"},
		{"in another case", "+ resource m memo://Insights"},
		{"below it", "+ resource m memo://insights/1"},
		{"a longer host", "- resource m memo://insights2"},
		{"a subdomain", "- resource m memo://insights.example"},
		{"a path without a host", "- resource m memo:insights"},
	}},
	{"deny resource:postgres://host/db/schema, allow", [][2]string{
		{"the schema", "- resource pg postgres://host/db/schema"},
		{"its tables", "- resource pg postgres://host/db/schema/table"},
		{"in another case", "- resource pg postgres://HOST/DB/Schema"},
		{"with a user", "- resource pg postgres://me:secret@host/db/schema"},
		{"with the default port", "- resource pg postgres://host:5432/db/schema"},
		{"with an empty port", "- resource pg postgres://host:/db/schema"},
		{"another port", "+ resource pg postgres://host:5433/db/schema"},
		{"another schema", "+ resource pg postgres://host/db/schema2"},
		{"another database", "+ resource pg postgres://host/db2/schema"},
		{"another host", "+ resource pg postgres://host2/db/schema"},
		{"up, but not above the host", "- resource pg postgres://host/../db/schema"},
	}},
	{"deny resource:https://h.example:443/a, allow", [][2]string{
		{"without the port", "- resource web https://h.example/a"},
		{"with zeros", "- resource web https://h.example:0443/a"},
		{"with the dot of the root", "- resource web https://h.example./a"},
		{"with an escaped host", "- resource web https://%68.example/a"},
		{"with fewer slashes", "- resource web https:h.example/a"},
		{"with fewer slashes and a port", "- resource web https:/me@h.example:443/a"},
		{"with more slashes", "- resource web https:////h.example/a"},
		{"with backslashes", `- resource web https:\\h.example\a`},
		{"a user that looks like a host", "- resource web https://other.example@h.example/a"},
		{"a host that looks like a user", "+ resource web https://h.example@other.example/a"},
		{"two users", "- resource web https://x@y@other.example/a"},
		{"a host that ends in a backslash", `- resource web https://other.example\@h.example/a`},
		{"an escaped at sign", "- resource web https://other.example%40h.example/a"},
		{"a host with characters beyond ASCII", "- resource web https://ｈ.example/a"},
		{"another scheme", "+ resource web http://h.example/a"},
		{"another path", "+ resource web https://h.example/b"},
		{"an address", "+ resource web https://[::1]/a"},
	}},
	{"deny resource:http://169.254.169.254/, deny resource:redis://127.0.0.1, allow", [][2]string{
		{"the address", "- resource web http://169.254.169.254/latest"},
		{"as one number", "- resource web http://2852039166/latest"},
		{"as one number with the dot of the root", "- resource web http://2852039166./latest"},
		{"as one number and a port", "- resource web http://2852039166:80/latest"},
		{"as a hexadecimal number", "- resource web http://0xa9fea9fe/latest"},
		{"as a hexadecimal number in capitals", "- resource web http://0XA9FEA9FE/latest"},
		{"as an octal number", "- resource web http://025177524776/latest"},
		{"as two numbers", "- resource web http://169.16689662/latest"},
		{"as three numbers", "- resource web http://169.254.43518/latest"},
		{"as three numbers, one hexadecimal", "- resource web http://0xa9.254.43518/latest"},
		{"as octal numbers", "- resource web http://0251.0376.0251.0376/latest"},
		{"as octal numbers with zeros", "- resource web http://000251.0376.0251.0376/latest"},
		{"as hexadecimal numbers", "- resource web http://0xA9.0xFE.0xa9.0xfe/latest"},
		{"with a number that may be octal", "- resource web http://169.254.169.0254/latest"},
		{"with leading zeros", "- resource web http://0169.0254.0169.0254/latest"},
		{"after url:", "- resource web URL:http://169.254.169.254/latest"},
		{"after url: twice", "- resource web url:Url:http://169.254.169.254/latest"},
		{"after url: and a space", "- resource web URL: http://169.254.169.254/latest"},
		{"after an escaped url:", "- resource web URL%3Ahttp://169.254.169.254/latest"},
		{"another after url:", "+ resource web URL:http://169.254.169.253/latest"},
		{"redundant zeros", "+ resource web http://169.254.00.007/latest"},
		{"only url:", "- resource web url:"},
		{"in escapes", "- resource web http://%31%36%39.254.169.254/latest"},
		{"with the dot of the root", "- resource web http://169.254.169.254./latest"},
		{"with a user", "- resource web http://me@169.254.43518/latest"},
		{"with fewer slashes", "- resource web http:2852039166/latest"},
		{"as IPv6", "- resource web http://[::ffff:169.254.169.254]/latest"},
		{"as IPv6 in hexadecimal", "- resource web http://[::ffff:a9fe:a9fe]/latest"},
		{"as IPv6 with all zeros", "- resource web http://[0:0:0:0:0:ffff:a9fe:a9fe]/latest"},
		{"as IPv6 in capitals", "- resource web http://[::FFFF:A9FE:A9FE]:80/latest"},
		{"as translated IPv6", "- resource web http://[64:ff9b::a9fe:a9fe]/latest"},
		{"as tunnelled IPv6", "- resource web http://[2002:a9fe:a9fe::]/latest"},
		{"in full width", "- resource web http://１６９.254.169.254/latest"},
		{"with dots of another script", "- resource web http://169。254。169。254/latest"},
		{"five numbers", "- resource web http://169.254.169.254.1/x"},
		{"a number that is too large", "- resource web http://4294967296/x"},
		{"a part that is too large", "- resource web http://169.254.169.256/x"},
		{"digits that are not octal", "- resource web http://0259.1/x"},
		{"a name that ends in a number", "- resource web http://h.example.1/x"},
		{"an empty label", "- resource web http://169..254.1/x"},
		{"brackets around a name", "- resource web http://[h.example]/x"},
		{"brackets that do not close", "- resource web http://[::1/x"},
		{"a zone", "- resource web http://[fe80::1%25eth0]/x"},
		{"another address", "+ resource web http://169.254.169.253/x"},
		{"another number", "+ resource web http://2852039165/x"},
		{"another IPv6 address", "+ resource web http://[2001:db8::1]/x"},
		{"a name with digits", "+ resource web http://169-254-169-254.example/x"},
		{"a name that begins with an address", "+ resource web http://169.254.169.254.example/x"},
		{"a scheme other than http", "- resource db redis://2130706433:6379/0"},
		{"a short form", "- resource db redis://127.1/0"},
		{"another short form", "+ resource db redis://127.2/0"},
		{"numbers that are not hosts", "+ resource n note://2130706433/0"},
	}},
	{"deny resource:http://2852039166/, allow", [][2]string{
		{"another spelling of the prefix", "- resource web http://169.254.169.254/latest"},
	}},
	{"allow resource:http://127.0.0.1/a, deny", [][2]string{
		{"a short form of the address", "+ resource web http://127.1/a/b"},
		{"the address as IPv6", "+ resource web http://[::ffff:127.0.0.1]/a"},
		{"another address", "- resource web http://127.2/a"},
		{"a name that ends in a number", "- resource web http://h.1/a"},
	}},
	{"allow resource:note://8/, deny", [][2]string{
		{"a name is not a number", "- resource n note://010/x"},
	}},
	{"deny resource:file:///srv/secrét/, deny resource:file:///straße/, deny resource:file:///secret-documents/, allow",
		[][2]string{
			{"composed", "- resource fs file:///srv/secrét/x"},
			{"decomposed", "- resource fs file:///srv/secre\u0301t/x"},
			{"decomposed, in escapes", "- resource fs file:///srv/secre%CC%81t/x"},
			{"decomposed, in capitals", "- resource fs file:///SRV/SECRE\u0301T/x"},
			{"with an invisible character", "- resource fs file:///srv/secre\u200b\u0301t/x"},
			{"with a variation selector", "- resource fs file:///srv/secrét\ufe0f/x"},
			{"with a filler", "- resource fs file:///srv/\u3164secrét/x"},
			{"with a grapheme joiner", "- resource fs file:///srv/s\u034fecrét/x"},
			{"with tags", "- resource fs file:///srv/secrét\U000e0041/x"},
			{"ending in a no-break space", "- resource fs file:///srv/secrét\u00a0/x"},
			{"ending in a line separator", "- resource fs file:///srv/secrét%E2%80%A8/x"},
			{"ending in an ideographic space", "- resource fs file:///srv/secrét%E3%80%80"},
			{"ending in spaces and dots", "- resource fs file:///srv/secrét.\u3000. /x"},
			{"another letter", "+ resource fs file:///srv/secret/x"},
			{"full case folding", "- resource fs file:///STRASSE/x"},
			{"full case folding of a capital", "- resource fs file:///STRAẞE/x"},
			{"another street", "+ resource fs file:///strase/x"},
			{"a short name", "- resource fs file:///SECRET~1/x"},
			{"a short name in lower case", "- resource fs file:///secret~1/x"},
			{"a short name in escapes", "- resource fs file:///SECRET%7E1/x"},
			{"a short name with an extension", "- resource fs file:///pub/SECRET~2.TXT"},
			{"a short name of a hash", "- resource fs file:///SE1A2B~1"},
			{"a short name with a dot at the end", "- resource fs file:///SECRET~1./x"},
			{"a short name on a host", "- resource fs file://host/SECRET~1"},
			{"a short name of another scheme", "- resource fs smb://host/SECRET~1"},
			{"a backup copy", "+ resource fs file:///notes.txt~"},
			{"a home directory", "+ resource fs file:///~1/x"},
			{"a revision in a web URI", "+ resource fs https://h.example/HEAD~1"},
			{"a long name", "+ resource fs file:///documents~1"},
		}},
	{"deny resource:file:///İ, allow", [][2]string{
		{"as one character", "- resource fs file:///İ"},
		{"as two characters", "- resource fs file:///I\u0307"},
		{"in lower case", "- resource fs file:///i\u0307"},
		{"without the dot", "- resource fs file:///i"},
	}},
	{"deny resource:http://[::1]/a, allow", [][2]string{
		{"the address", "- resource web http://[::1]/a"},
		{"with the default port", "- resource web http://[::1]:80/a"},
		{"with all zeros", "- resource web http://[0:0:0:0:0:0:0:1]/a"},
		{"another address", "+ resource web http://[::2]/a"},
	}},
	{"allow resource:https://h.example/a, deny", [][2]string{
		{"the host in another case", "+ resource web HTTPS://H.Example/a/b"},
		{"the dot of the root", "+ resource web https://h.example./a"},
		{"the default port", "+ resource web https://h.example:443/a"},
		{"another port", "- resource web https://h.example:8443/a"},
		{"the path in another case", "- resource web https://h.example/A"},
		{"a user", "+ resource web https://me@h.example/a"},
		{"a host that looks like a user", "- resource web https://h.example@other.example/a"},
		{"a longer host", "- resource web https://h.example.org/a"},
	}},
	{"allow resource:https://, deny", [][2]string{
		{"all hosts", "+ resource web https://h.example/a"},
		{"another scheme", "- resource web http://h.example/a"},
	}},
	{"deny resource:file:///C:/Users, allow", [][2]string{
		{"the path", "- resource fs file:///C:/Users/x"},
		{"the drive in another case", "- resource fs file:///c:/Users/x"},
		{"an escaped colon", "- resource fs file:///C%3A/Users/x"},
		{"a bar instead of a colon", "- resource fs file:///C|/Users/x"},
		{"the drive as a host", "- resource fs file://C:/Users/x"},
		{"backslashes", `- resource fs file:///C:\Users\x`},
		{"the drive as a host, with backslashes", `- resource fs file://C:\Users\x`},
		{"up, but not above the drive", "- resource fs file:///C:/../Users/x"},
		{"up in the drive", "- resource fs file:///C:/x/../Users"},
		{"another drive", "+ resource fs file:///D:/Users/x"},
	}},
	{"allow resource:file:///c:/Users, deny", [][2]string{
		{"the drive in another case", "+ resource fs file:///C:/Users/x"},
		{"the path in another case", "- resource fs file:///C:/users/x"},
		{"backslashes", `+ resource fs file:///C:\Users\x`},
	}},
	{"deny resource:file://nas/share, allow", [][2]string{
		{"the host", "- resource fs file://NAS/share/x"},
		{"as a path", "- resource fs file:////nas/share/x"},
		{"another host", "+ resource fs file://san/share/x"},
	}},
	{"deny resource:file:///Größe/日本, allow", [][2]string{
		{"unescaped", "- resource fs file:///Größe/日本/x"},
		{"escaped", "- resource fs file:///Gr%C3%B6%C3%9Fe/%E6%97%A5%E6%9C%AC"},
		{"in another case", "- resource fs file:///gRÖße/日本"},
		{"another path", "+ resource fs file:///Größe/日"},
	}},
	{"deny resource:file:///a%2A, allow", [][2]string{
		{"an escaped star is a star", "- resource fs file:///a*"},
		{"another character", "+ resource fs file:///ab"},
	}},
	{"deny resource:file:///a;b, allow", [][2]string{
		{"the prefix with its parameter", "- resource fs file:///a;b/c"},
		{"the prefix without its parameter", "+ resource fs file:///a/c"},
	}},
	{"deny resource:file:///secret, allow", [][2]string{ // A69
		{"a template in it", "- template fs file:///secret/{name}"},
		{"a template far in it", "- template fs file:///secret/x/{name}.txt"},
		{"a template that appends a path", "- template fs file:///secret{/path*}"},
		{"a template that appends a query", "- template fs file:///secret{?q}"},
		{"a template with a query", "- template fs file:///secret?q={q}"},
		{"a template in it by ..", "- template fs file:///pub/../secret/{x}"},
		{"a template in it in another case", "- template fs file:///Secret/{x}"},
		{"a template that may expand to it", "+ template fs file:///{name}"},
		{"a template that appends to the name", "+ template fs file:///secret{name}"},
		{"a template next to it", "+ template fs file:///secrets/{name}"},
		{"a template of another scheme", "+ template fs note:{id}"},
		{"a template of anything", "+ template fs {+uri}"},
		{"a template without variables", "- template fs file:///secret/x"},
		{"an invalid template", "- template fs file:///pub/%zz/{x}"},
		{"a URI to which a listed template expands", "- resource fs file:///secret"},
	}},
	{"allow resource:file:///pub/docs, deny", [][2]string{
		{"a template in it", "+ template fs file:///pub/docs/{name}"},
		{"a template that may expand to it", "+ template fs file:///pub/{name}"},
		{"a template of all files", "+ template fs file:///{+path}"},
		{"a template of anything", "+ template fs {+uri}"},
		{"a template of the scheme", "+ template fs file:{+x}"},
		{"a template next to it", "- template fs file:///pub/src/{name}"},
		{"a template with a longer name", "- template fs file:///pub/docs2/{name}"},
		{"a template of another scheme", "- template fs note:{id}"},
		{"a template without variables", "+ template fs file:///pub/docs/x"},
	}},
	{"deny resource:file:///a, allow resource:file:///a/b, deny", [][2]string{
		{"a template that expands only to denied URIs", "- template fs file:///{x}"},
		{"a template in it", "- template fs file:///a/b/{x}"},
	}},
	{"deny resource:a::*, allow resource:note:x, deny", [][2]string{
		{"a template of a denied server", "- template a note:{x}"},
		{"a template of another server", "+ template b note:{x}"},
		{"a denied server", "- server a"},
		{"a server that may have allowed notes", "+ server b"},
		{"an invalid URI", "- resource b %"},
	}},
}

func TestMatrix(t *testing.T) { // A53, A54, A55, A57, A69
	rows := 0
	for _, m := range matrix {
		p := policy(t, m.policy)
		for _, row := range m.rows {
			rows++
			fields := strings.SplitN(row[1], " ", 4)
			server, target := fields[2], strings.Join(fields[3:], "")
			got := Deny
			tool := newTool(server, target, mcp.Unannotated)
			switch fields[1] {
			case "server":
				got = allowed(p.MayAllow(server))
			case "restricts":
				got = allowed(p.Restricts(server))
			case "tool":
				got = p.Tool(tool).Action
			case "call": // with arguments
				name, arguments, _ := strings.Cut(target, " ")
				tool.Tool, tool.Arguments = name, []byte(arguments)
				if got = p.Call(tool).Action; got != Deny && p.Tool(tool).Action == Deny {
					t.Errorf("%s: %s: the tool is hidden", m.policy, row[0])
				}
			case "asked": // a tool of a client that can confirm
				tool.Askable = true
				got = p.Tool(tool).Action
			case "reader":
				tool.Annotations = mcp.ReadOnly | mcp.OpenWorld
				got = p.Tool(tool).Action
			case "adder":
				tool.Annotations = mcp.Idempotent
				got = p.Tool(tool).Action
			case "prompt":
				got = p.Prompt(server, target).Action
			case "resource":
				got = p.Resource(server, target).Action
			case "template":
				got = p.Template(server, target).Action
			case "everything":
				got = allowed(p.AllowsAllURIs(server, target))
			default:
				t.Fatalf("%q: unknown kind", row[1])
			}
			if want := map[string]Action{"+": Allow, "-": Deny, "?": Confirm}[fields[0]]; got != want {
				t.Errorf("%s: %s: %q is %v", m.policy, row[0], row[1], got)
			}
			if fields[1] == "reader" || fields[1] == "adder" {
				unannotated := *tool
				unannotated.Annotations = mcp.Unannotated
				if p.Tool(&unannotated).Action != got && !p.NeedsAnnotations(server, target) {
					t.Errorf("%s: %s: annotations matter, but are not needed", m.policy, row[0])
				}
			}
		}
	}
	if rows < 200 {
		t.Errorf("only %d rows", rows)
	}
	t.Logf("%d rows", rows)
}

// policy returns a policy of rules and a default, which commas separate.
func policy(t testing.TB, text string) *Policy {
	t.Helper()
	lines := strings.Split(text, ", ")
	last := len(lines) - 1
	var rules []Rule
	for _, line := range lines[:last] {
		action, pattern, _ := strings.Cut(line, " ")
		pattern, expression, conditional := strings.Cut(pattern, " when ")
		a, ok := ParseAction(action)
		if !ok {
			t.Fatalf("%s: unknown action %q", text, action)
		}
		rule := Rule{Action: a, Pattern: pattern}
		if conditional {
			var err error
			if rule.When, err = condition.Compile(expression); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		rules = append(rules, rule)
	}
	p, err := New(rules, allowed(lines[last] == "allow"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func allowed(ok bool) Action {
	if ok {
		return Allow
	}
	return Deny
}

func newTool(server, name string, annotations mcp.Annotations) *Tool {
	return &Tool{Facts: condition.Facts{Server: server, Tool: name, Annotations: annotations}}
}

func isAllowed(d Decision) bool { return d.Action == Allow }
