package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"go.yaml.in/yaml/v3"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// The clients of the rules example can do what it says.
func TestExampleOfRules(t *testing.T) {
	isolate(t)
	exampleSecrets(t)
	served := run(t, "../../../caddyfile_examples/mcp_gateway_rules.Caddyfile")
	typed := []command{
		{"bin/caddy mcp tools --client reader | grep -o 'sample__[a-z_]*'\n",
			"sample__read_log\nsample__list_files\nsample__ping"},
		{"bin/caddy mcp tools --client agent --why sample::read_image | grep -o 'read_image.*'\n",
			"read_image  confirm  confirm destructive"},
		{"bin/caddy mcp call sample::ping --client agent\n", "pong"},
		{"bin/caddy mcp call sample::read_log lines=1 --client agent | wc -l\n", "1"},
		{"bin/caddy mcp call sample::read_log lines=10001 --client agent || true\n", "Error: Access denied (acl_denied)"},
		{"bin/caddy mcp call sample::echo --client agent 2>&1 | grep -o 'unknown tool' || true\n", "unknown tool"},
	}
	for i, got := range runCommands(t, served, typed)[:len(typed)] {
		same(t, strings.TrimSpace(got), typed[i].output)
	}
	if log := served.stop(t); strings.Count(log, `"msg":"call"`) < 2 || !strings.Contains(log, `"mcp_tool":"echo"`) {
		t.Errorf("calls are missing in the audit log: %s", log)
	}
}

// shippedFiles returns the Caddyfiles for users: the one at the root and every example.
func shippedFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../../caddyfile_examples/*.Caddyfile")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return append(files, "../../../Caddyfile")
}

// withFreePorts replaces the ports of a shipped Caddyfile (8080 and following, and 8006 of the
// pruner) with free ones, and returns the new address of each.
func withFreePorts(t *testing.T, caddyfile string) (moved string, addresses map[string]string) {
	t.Helper()
	addresses = map[string]string{}
	moved = movePorts(t, caddyfile, addresses)
	if addresses[":8080"] == "" && addresses[":8006"] == "" {
		t.Fatal("the file uses neither port 8080 nor 8006")
	}
	return moved, addresses
}

// movePorts does the same with known addresses, and adds new ones to them.
func movePorts(t *testing.T, caddyfile string, addresses map[string]string) string {
	t.Helper()
	return regexp.MustCompile(`:80(?:06|[89]\d)\b`).ReplaceAllStringFunc(caddyfile, func(port string) string {
		if addresses[port] == "" {
			addresses[port] = freeAddress(t)
		}
		return strings.TrimPrefix(addresses[port], "127.0.0.1")
	})
}

// callReadLog calls for 2000 log lines and expects the masked result of the sample server.
func callReadLog(t *testing.T, url string) {
	t.Helper()
	call := rpc("tools/call", `{"name":"read_log","arguments":{"lines":2000}}`)
	text := toolText(t, post(t, "http://"+upstream(t, mcpsample.NewServer()), call).body)
	want := text[:2000] + fmt.Sprintf("\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=%d head=2000 tail=2000] ...\n",
		len(text)) + text[len(text)-2000:]

	handle := regexp.MustCompile(` id=obs_[A-Za-z0-9]{10}]` + regexp.QuoteMeta(hint))
	for _, accept := range []string{"application/json", "application/json, text/event-stream"} {
		got := post(t, url, call, "Accept: "+accept, "Authorization: Bearer "+exampleToken).body
		data := strings.TrimPrefix(got, "event: message\ndata: ")
		same(t, handle.ReplaceAllString(toolText(t, data), "]"), want)
	}
}

// sendConversation sends the sample conversation to the stub model, which returns how much reached
// it, and expects a good part to be masked.
func sendConversation(t *testing.T, address string) {
	t.Helper()
	conversation, err := os.ReadFile("../../../caddyfile_examples/conversation.json")
	if err != nil {
		t.Fatal(err)
	}
	got := post(t, "http://"+address+"/v1/chat/completions", string(conversation)).body
	var reached int
	if _, err := fmt.Sscanf(got, "%d bytes have reached the model", &reached); err != nil {
		t.Fatalf("%v: %q", err, got)
	}
	if reached < 1000 || reached > len(conversation)*2/3 {
		t.Errorf("%d bytes of %d have reached the model", reached, len(conversation))
	}
}

// pruneLog prunes a log, and recovers the removed lines.
func pruneLog(t *testing.T, endpoint string) {
	t.Helper()
	got := pruneText(t, endpoint, prunable{text: withLines(1000, "INFO request %d served",
		map[int]string{400: "ERROR x"}), source: "logs"})
	if len(got.Annotations) == 0 {
		t.Fatalf("nothing was pruned: %+v %v", got.Stats, got.Warnings)
	}
	first := got.Annotations[0].Start
	if line := recoverLines(t, endpoint, got.PruneID, false, first,
		first).Text; line != fmt.Sprintf("INFO request %d served", first) {
		t.Errorf("line %d: got %q", first, line)
	}
}

// toolText returns the text of the result of a tool call.
func toolText(t *testing.T, message string) string {
	t.Helper()
	var response struct {
		Result struct {
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(message), &response); err != nil || len(response.Result.Content) != 1 {
		t.Fatalf("%v: %.300s", err, message)
	}
	return response.Result.Content[0].Text
}

// exampleToken is the token of clients in the examples.
const exampleToken = "a-token-that-is-good-for-the-examples"

// exampleSecrets sets the environment variables that the examples use.
func exampleSecrets(t *testing.T) {
	t.Helper()
	setenv(t, "CLINE_TOKEN", exampleToken)
	setenv(t, "CI_TOKEN", exampleToken+"-of-another-client")
	setenv(t, "READER_TOKEN", exampleToken+"-reader")
	setenv(t, "AGENT_TOKEN", exampleToken)
	setenv(t, "MCP_TOKEN", exampleToken)
	setenv(t, "MCP_SESSION_KEY", exampleToken)
	setenv(t, "OPERATOR_TOKEN", exampleToken+"-operator")
}

func TestShippedCaddyfiles(t *testing.T) {
	isolate(t)
	exampleSecrets(t)
	for _, file := range shippedFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			caddyfile, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(caddyfile, map[string]any{"filename": file})
			if err != nil || len(warnings) > 0 {
				t.Fatalf("adapt: %v %v", err, warnings)
			}
			moved, addresses := withFreePorts(t, string(caddyfile))
			load(t, moved)
			if strings.Contains(string(caddyfile), "\tmcp_sample") {
				path := "/mcp"
				if strings.Contains(string(caddyfile), "\tmcp_gateway") {
					path += "/sample"
				}
				callReadLog(t, "http://"+addresses[":8080"]+path)
			}
			if strings.Contains(string(caddyfile), "\tmcp_pruner") {
				endpoint := "http://" + addresses[":8006"] + "/rpc"
				if strings.Contains(string(caddyfile), "\tmcp_gateway") {
					endpoint = rpcAt("http://"+addresses[":8080"], "pruner")
				}
				pruneLog(t, endpoint)
			}
			if strings.Contains(string(caddyfile), "\ttool_result_mask ") {
				sendConversation(t, addresses[":8080"])
			}
			if strings.Contains(string(caddyfile), "metrics /metrics") {
				metrics := send(t, client, "GET", "http://"+addresses[":8082"]+"/metrics", "").body
				if !strings.Contains(metrics, "caddy_mcp_masked_chars_total{server=\"sample\"} ") {
					t.Errorf("no masked characters in the metrics:\n%s", metrics)
				}
			}
		})
	}
}

// recipesPage has complete Caddyfiles, each with commands that use it.
const recipesPage = "docs/recipes.md"

// recipeSecrets are the environment variables of recipes.
var recipeSecrets = []string{
	"LAPTOP_TOKEN=" + exampleToken, "ADMIN_TOKEN=" + exampleToken + "-admin", "READER_TOKEN=" + exampleToken + "-reader",
	"ALICE_TOKEN=" + exampleToken + "-alice", "BOB_TOKEN=" + exampleToken + "-bob", "AGENTS_TOKEN=" + exampleToken +
		"-agents",
	"GITHUB_TOKEN_ALICE=ghp_alice", "GITHUB_TOKEN_BOB=ghp_bob", "MCP_SESSION_KEY=" + exampleToken,
}

// recipeSections returns the recipes of the page by their headings.
func recipeSections(t *testing.T) map[string]string {
	t.Helper()
	sections := map[string]string{}
	for _, section := range strings.Split(pages(t)[recipesPage], "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		sections[heading] = text
	}
	return sections
}

// isCaddyfile reports whether the file is a complete Caddyfile.
func (f configFile) isCaddyfile() bool { return strings.HasSuffix(f.path, "Caddyfile") }

// caddyfiles returns the Caddyfiles of a recipe: its own files, and those in its ConfigMap.
func (r recipe) caddyfiles(t *testing.T) (found []configFile) {
	t.Helper()
	for _, file := range r.files {
		if file.isCaddyfile() {
			found = append(found, file)
		}
		if strings.HasSuffix(file.path, ".yaml") {
			for _, object := range yamlObjects(t, file.content) {
				if text := dig(object, "data", "Caddyfile"); text != nil {
					found = append(found, configFile{"Caddyfile", text.(string)})
				}
			}
		}
	}
	return found
}

// Every Caddyfile of the page is valid and formatted.
func TestRecipesAreValid(t *testing.T) {
	isolate(t)
	for heading, text := range recipeSections(t) {
		t.Run(heading, func(t *testing.T) {
			dir, r := t.TempDir(), recipeIn(text)
			writeFiles(t, dir, r.files...)
			caddyfiles := r.caddyfiles(t)
			blocks, named := strings.Count(text, "\n```caddyfile\n"), strings.Count(text, "`:\n\n```caddyfile\n")
			if len(caddyfiles) == 0 || blocks != named {
				t.Errorf("%d Caddyfiles; %d of %d blocks have a file name", len(caddyfiles), named, blocks)
			}
			for _, file := range caddyfiles {
				writeFiles(t, dir, file)
				cmd := caddy(t, "validate", "--adapter", "caddyfile", "--config", filepath.Join(dir, file.path))
				cmd.Env = append(cmd.Env, recipeSecrets...)
				out, err := cmd.CombinedOutput()
				if err != nil || strings.Contains(string(out), "not formatted") {
					t.Errorf("%s: %v\n%s", file.path, err, out)
				}
			}
		})
	}
}

func writeFiles(t *testing.T, dir string, files ...configFile) {
	t.Helper()
	for _, file := range files {
		if err := os.WriteFile(filepath.Join(dir, file.path), []byte(file.content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// newGitHub starts a server that maps tokens to accounts and refuses all other requests.
func newGitHub(t *testing.T) *remoteServer {
	t.Helper()
	handle := func(w http.ResponseWriter, r *mcptest.Received) bool {
		user, known := strings.CutPrefix(r.HTTP.Header.Get("Authorization"), "Bearer ghp_")
		if !known {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if r.Tool() != "get_me" {
			return false
		}
		r.Answer(w, `"result":{"content":[{"type":"text","text":`+quote(`{"login":"`+user+`-at-github"}`)+`}]}`)
		return true
	}
	return serveScript(t, &mcptest.Script{Tools: []string{"get_me"}, Handle: handle})
}

// A recipeServers provides local servers that replace the servers of recipes on the internet.
type recipeServers struct {
	search, github *remoteServer
	standIns       *strings.Replacer
}

func newRecipeServers(t *testing.T) recipeServers {
	t.Helper()
	npm := filepath.Join(peer(t, "").Dir, "node_modules", "@modelcontextprotocol") // skips the test if it is not installed
	npm, err := filepath.Abs(npm)
	if err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	writeFiles(t, data, configFile{"notes.txt", "remember\n"})
	s := recipeServers{search: newLenientServer(t, "find"), github: newGitHub(t)}
	s.standIns = strings.NewReplacer(
		"npx -y @modelcontextprotocol/server-filesystem", "node "+npm+"/server-filesystem/dist/index.js",
		"npx -y @modelcontextprotocol/server-sequential-thinking", "node "+npm+"/server-sequential-thinking/dist/index.js",
		"/srv/data", data,
		"/var/log/caddy", t.TempDir(),
		"https://api.githubcopilot.com/mcp/", "http://"+s.github.address+"/mcp",
		"http://127.0.0.1:3001/mcp", "http://"+s.search.address+"/mcp",
	)
	return s
}

// TestRecipes serves every recipe that has commands, with local servers instead of those on the
// internet, runs the commands, and compares the output with that of the page.
func TestRecipes(t *testing.T) {
	isolate(t)
	alsoAt := map[string][]string{"Replicas": {":8081"}}
	also := map[string]func(t *testing.T, served *caddyProcess, search *remoteServer){
		"Credentials for each user": testUserAccounts,
		"A header of the client":    testUserAccounts,
		"Replicas":                  testReplicaFailure,
	}
	typed := 0
	for heading, text := range recipeSections(t) {
		if !strings.Contains(text, "\n```sh\n") {
			continue
		}
		typed++
		t.Run(heading, func(t *testing.T) {
			s := newRecipeServers(t)
			r := recipeIn(s.standIns.Replace(text))
			served, shell := r.serve(t, map[string]string{":8091": s.search.address}, alsoAt[heading])
			r.follow(t, shell, served)
			if check := also[heading]; check != nil {
				check(t, served, s.search)
			}
		})
	}
	if typed < 8 {
		t.Errorf("only %d recipes have commands", typed)
	}
}

// The first Caddyfile of the README serves both of its servers.
func TestReadmeCaddyfile(t *testing.T) {
	isolate(t)
	s := newRecipeServers(t)
	r := recipe{
		files: []configFile{{"Caddyfile", s.standIns.Replace(blocksOf(t, "README.md", "caddyfile")[0])}},
		commands: []command{{
			typed:  "bin/caddy mcp tools | awk '{print $1, $2}' | grep -E '__list_directory$|__find|recover'\n",
			output: "files files__list_directory\nsearch search__find\n- recover_observation",
		}},
	}
	served, shell := r.serve(t, map[string]string{}, nil)
	r.follow(t, shell, served)
}

// The health check of the image, which is also a pod's probe, succeeds with the Caddyfiles of
// the page.
func TestRecipeProbes(t *testing.T) {
	isolate(t)
	for _, heading := range []string{"Docker", "Kubernetes"} {
		t.Run(heading, func(t *testing.T) {
			r := recipeIn(newRecipeServers(t).standIns.Replace(recipeSections(t)[heading]))
			served, _ := r.serve(t, map[string]string{}, nil)
			probe := caddy(t, "mcp-health", "--config", configOf(served))
			probe.Env = append(probe.Env, recipeSecrets...)
			if out, err := probe.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			res, err := http.Get("http://" + served.addresses[":8080"] + "/mcp/health")
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("ready: %s", res.Status)
			}
		})
	}
}

// serve runs the Caddyfiles of a recipe, and the first also at other ports. It returns a shell
// in which curl reaches them at the recipe's public addresses.
func (r recipe) serve(t *testing.T, addresses map[string]string, alsoAt []string) (*caddyProcess, *exec.Cmd) {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, r.files...)
	addresses[":2019"] = freeAddress(t)
	shell := exec.CommandContext(t.Context(), "bash", "-c")
	shell.Dir = "../../.."
	shell.Env = append(os.Environ(), recipeSecrets...)
	shell.Env = append(shell.Env, "CADDY_ADMIN="+addresses[":2019"], "CURL_HOME="+dir)

	caddyfiles := r.caddyfiles(t)
	for _, port := range alsoAt {
		other := strings.Replace(caddyfiles[0].content, ":8080", port, 1)
		caddyfiles = append(caddyfiles, configFile{"other.Caddyfile", other})
	}
	var first *caddyProcess
	for i, file := range caddyfiles {
		_, port, _ := net.SplitHostPort(freeAddress(t))
		_, tlsPort, _ := net.SplitHostPort(freeAddress(t))
		admin := "admin off"
		if i == 0 {
			admin = "admin " + addresses[":2019"]
		}
		file.content = withOptions(movePorts(t, file.content, addresses), admin,
			"http_port "+port, "https_port "+tlsPort, "local_certs", "skip_install_trust")
		host, _, _ := strings.Cut(regexp.MustCompile(`(?m)^[a-z.]+ \{$`).FindString(file.content), " ")
		if host != "" {
			curl := fmt.Sprintf("show-error\ninsecure\nnoproxy = \"*\"\nconnect-to = \"%s:443:127.0.0.1:%s\"\n", host, tlsPort)
			writeFiles(t, dir, configFile{".curlrc", curl})
			addresses[":443"] = "127.0.0.1:" + tlsPort
		}
		writeFiles(t, dir, file)
		cmd := caddy(t, "run", "--adapter", "caddyfile", "--config", filepath.Join(dir, file.path))
		cmd.Env = append(cmd.Env, recipeSecrets...)
		served := startCaddy(t, cmd)
		if i == 0 {
			first = served
		}
		if host != "" {
			await.Until(t, "Caddy to have a certificate", func() bool {
				conn, err := tls.Dial("tcp", "127.0.0.1:"+tlsPort, &tls.Config{ServerName: host, InsecureSkipVerify: true})
				if err == nil {
					conn.Close()
				}
				return err == nil
			})
		}
	}
	first.addresses = addresses
	return first, shell
}

// testUserAccounts checks that each user gets their own GitHub account, for clients of
// both eras, and that other servers receive no credentials.
func testUserAccounts(t *testing.T, served *caddyProcess, search *remoteServer) {
	endpoint := "http://" + served.addresses[":8080"] + "/mcp"
	for _, era := range clientEras {
		for range 2 {
			for _, user := range []string{"alice", "bob"} {
				c := newTestClient(t, endpoint, era.modern, `{}`, "Authorization: Bearer "+exampleToken+"-"+user,
					"X-Github-Token: ghp_"+user)
				if got := c.use(t, "github", "get_me", `{}`); !strings.Contains(got, user+"-at-github") {
					t.Errorf("%s: %s got %s", era.name, user, got)
				}
				if !slices.Contains(tools(t, c), "search__find") {
					continue // the recipe has no other server
				}
				c.use(t, "search", "find", `{}`)
			}
		}
	}
	for _, r := range search.Received() {
		for name, values := range r.HTTP.Header {
			if value := strings.Join(values, " "); strings.Contains(value, "ghp_") || strings.Contains(value, exampleToken) {
				t.Errorf("the other server received %s: %s", name, value)
			}
		}
	}
}

// testReplicaFailure stops a replica, and sends requests from several addresses to the balancer.
func testReplicaFailure(t *testing.T, served *caddyProcess, _ *remoteServer) {
	served.stop(t)
	for i := range 8 {
		if i > 0 && runtime.GOOS != "linux" {
			break // other systems have only one loopback address
		}
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(i+1))}}
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, served.addresses[":443"])
			},
		}
		balanced := &http.Client{Transport: transport, Timeout: patience}
		endpoint := rpcAt("https://mcp.example.com", "search")
		got := send(t, balanced, "POST", endpoint, rpc("tools/list", `{}`), "Authorization: Bearer "+exampleToken)
		if got.StatusCode != http.StatusOK {
			t.Errorf("client %d: %d %s", i, got.StatusCode, got.body)
		}
		transport.CloseIdleConnections()
	}
}

// yamlObjects returns the documents of a YAML file.
func yamlObjects(t *testing.T, text string) (objects []map[string]any) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var object map[string]any
		switch err := decoder.Decode(&object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

// dig returns a nested value of maps and lists, or nil.
func dig(value any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			object, _ := value.(map[string]any)
			value = object[step]
		case int:
			list, _ := value.([]any)
			if step >= len(list) {
				return nil
			}
			value = list[step]
		}
	}
	return value
}

// The manifests of the page match the release's image: its name, port, user, paths and health
// check.
func TestRecipeManifests(t *testing.T) {
	isolate(t)
	source, err := os.ReadFile("../release/image.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, fact := range []string{
		`imageUser        = 65532`, `imageConfig      = "/etc/caddy/Caddyfile"`, `"HOME=/home/caddy"`, `"8080/tcp": {}`,
		`Volumes:      map[string]struct{}{"/config": {}, "/data": {}}`,
		`"/usr/bin/caddy", "mcp-health", "--config", imageConfig`,
	} {
		if !bytes.Contains(source, []byte(fact)) {
			t.Errorf("the image has no %s: adapt the manifests", fact)
		}
	}
	image := regexp.MustCompile(`^(registry\.example\.com/)?caddy-mcp-gateway:v\d+\.\d+\.\d+(-node)?$`)
	is := func(what string, got, want any) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	manifest := func(heading string) []map[string]any {
		t.Helper()
		for _, file := range recipeIn(recipeSections(t)[heading]).files {
			if strings.HasSuffix(file.path, ".yaml") {
				return yamlObjects(t, file.content)
			}
		}
		t.Fatalf("%s has no YAML", heading)
		return nil
	}

	gateway := dig(manifest("Docker")[0], "services", "gateway")
	if name := fmt.Sprint(dig(gateway, "image")); !image.MatchString(name) || !strings.HasSuffix(name, "-node") {
		t.Errorf("image %s cannot start npx", name)
	}
	is("ports", dig(gateway, "ports"), "[127.0.0.1:8080:8080]")
	is("volumes", dig(gateway, "volumes"),
		"[./Caddyfile:/etc/caddy/Caddyfile:ro ./data:/srv/data data:/data config:/config home:/home/caddy]")

	objects := map[string]map[string]any{}
	for _, object := range manifest("Kubernetes") {
		objects[fmt.Sprint(object["kind"])] = object
	}
	pod := dig(objects["Deployment"], "spec", "template")
	container := dig(pod, "spec", "containers", 0)
	if name := fmt.Sprint(dig(container, "image")); !image.MatchString(name) {
		t.Errorf("image %s", name)
	}
	is("startup probe", dig(container, "startupProbe", "exec", "command"),
		"[/usr/bin/caddy mcp-health --config /etc/caddy/Caddyfile]")
	is("readiness probe", dig(container, "readinessProbe", "httpGet", "path"), "/mcp/health")
	is("port of the readiness probe", dig(container, "readinessProbe", "httpGet", "port"),
		dig(container, "ports", 0, "name"))
	is("group", dig(pod, "spec", "securityContext", "fsGroup"), 65532)
	is("port", dig(container, "ports", 0, "containerPort"), 8080)
	is("port of the service", dig(objects["Service"], "spec", "ports", 0, "targetPort"),
		dig(container, "ports", 0, "name"))
	is("selector of the service", dig(objects["Service"], "spec", "selector"), dig(pod, "metadata", "labels"))
	is("selector", dig(objects["Deployment"], "spec", "selector", "matchLabels"), dig(pod, "metadata", "labels"))
	is("ConfigMap", dig(pod, "spec", "volumes", 0, "configMap", "name"), dig(objects["ConfigMap"], "metadata", "name"))
	for i, path := range []string{"/etc/caddy", "/data", "/config"} {
		is("mount", dig(container, "volumeMounts", i, "mountPath"), path)
	}
}

// The Caddyfiles of the Debian package and of the image are valid and formatted.
func TestPackagedCaddyfiles(t *testing.T) {
	isolate(t)
	for _, packaged := range []string{"deb", "image"} {
		file, err := filepath.Abs(filepath.Join("../../../packaging", packaged, "Caddyfile"))
		if err != nil {
			t.Fatal(err)
		}
		if out, err := caddy(t, "validate", "--adapter", "caddyfile", "--config", file).CombinedOutput(); err != nil ||
			strings.Contains(string(out), `"level":"warn"`) {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}
