package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

// A contestant is a program that forwards calls of clients to servers.
type contestant struct {
	name    string
	stdio   bool // its servers run on stdio, else over HTTP
	masked  bool // shortens results
	joins   bool // serves many servers at one endpoint
	streams bool // sessions have a GET stream
	https   bool // serves HTTP/2 with TLS
	guards  bool // authenticates clients and applies rules to them

	// Endpoints by era. One without a path has a reason instead.
	legacy, modern endpoint

	// tool returns the name of a server's tool as clients call it. If nil, tools keep their names.
	tool func(server, tool string) string

	// command returns the command line; files are its files, by name in s.dir. If it is nil,
	// no program runs: clients connect to the server directly.
	command func(s site) []string
	files   func(s site) map[string]string
	env     []string               // added to the environment of all contestants
	version func() (string, error) // fails if the program is not installed
}

// An endpoint is where clients of an era connect.
type endpoint struct {
	path        string
	dialect     load.Dialect
	unsupported string // why the era is unsupported
}

// A setup is what a case requires of contestants in addition to forwarding calls.
type setup struct {
	modern  bool // clients use 2026-07-28
	tls     bool // clients use HTTP/2 with TLS
	guarded bool // clients have a token; rules, rates and redaction apply
	admin   bool // the case counts goroutines through the admin API
}

// token is the token of clients in guarded cases.
const token = "0123456789abcdef0123456789abcdef"

// A site is the configuration of a contestant.
type site struct {
	*programs
	setup
	dir     string
	port    int
	servers []server
}

// file returns the path of a file of the site.
func (s site) file(name string) string { return filepath.Join(s.dir, name) }

// A server is an MCP server behind a contestant: a URL, or a command for stdio.
type server struct {
	name, url string
	stdio     []string
}

// programs has the paths of programs: Caddy, and the directories of other gateways.
type programs struct{ caddy, goPeers, npmPeers string }

const (
	baseline = "Caddy `reverse_proxy`"
	direct   = "direct"
)

// contestants returns all contestants in the order of the report. Their commands and
// settings are here and nowhere else. Each has the settings that its documentation
// recommends for production, or faster ones. None writes a log.
func (p *programs) contestants() []contestant {
	underscores := func(server, tool string) string { return server + "__" + tool }
	colon := func(server, tool string) string { return server + ":" + tool }
	streamable := func(path string) endpoint { return endpoint{path: path, dialect: load.Legacy} }
	stateless := func(path string) endpoint { return endpoint{path: path, dialect: load.Modern} }
	ours := func(name, path, mask string, set func(*contestant)) contestant {
		c := contestant{name: "mcp_gateway " + name, masked: mask != "mask off", streams: true, https: true,
			guards: true, legacy: streamable(path), modern: stateless(path),
			version: goVersion(p.caddy, "github.com/caddy-mcp-gateway/caddy-mcp-gateway"),
			command: p.runCaddy, files: gatewayCaddyfile(mask)}
		if path == "/mcp" {
			c.tool, c.joins = underscores, true
		}
		if set != nil {
			set(&c)
		}
		return c
	}
	plain := func(c *contestant) {
		c.legacy.dialect, c.streams = load.Plain, false
		c.modern = endpoint{unsupported: "plain JSON-RPC has no eras"}
	}
	child := func(c *contestant) { c.stdio = true }
	noModern := endpoint{unsupported: "does not support 2026-07-28"}

	return []contestant{
		{name: direct, streams: true, legacy: streamable(""), modern: stateless("")},
		{name: baseline, streams: true, https: true, legacy: streamable(""), modern: stateless(""),
			version: goVersion(p.caddy, "github.com/caddyserver/caddy/v2"), command: p.runCaddy,
			files: func(s site) map[string]string {
				return map[string]string{"Caddyfile": s.caddyfile("\treverse_proxy " + s.servers[0].host() + "\n")}
			}},
		{name: "nginx `proxy_pass`", streams: true, https: true, legacy: streamable(""), modern: stateless(""),
			version: nginxVersion,
			command: func(s site) []string { return []string{"nginx", "-p", s.dir, "-e", "stderr", "-c", "nginx.conf"} },
			files:   nginxConf},

		ours("/mcp/{server}, mask off", "/mcp/bench", "mask off", nil),
		ours("/mcp/{server}", "/mcp/bench", "mask", nil),
		ours("/mcp", "/mcp", "mask off", nil),
		ours("/mcp, masked", "/mcp", "mask", nil),
		ours("…/rpc, mask off", "/api/mcp-gateway/bench/rpc", "mask off", plain),
		ours("…/rpc", "/api/mcp-gateway/bench/rpc", "", plain),

		{name: "TBXark mcp-proxy", streams: true, legacy: streamable("/bench/mcp"), modern: noModern,
			version: goVersion(filepath.Join(p.goPeers, "mcp-proxy"), "github.com/TBXark/mcp-proxy"), command: p.runTBXark,
			files: tbxarkConfig},
		{name: "Go SDK relay", joins: true, streams: true, legacy: streamable("/mcp"), modern: stateless("/stateless"),
			version: goVersion(filepath.Join(p.goPeers, "relay"), "github.com/modelcontextprotocol/go-sdk"), tool: underscores,
			command: p.runRelay},
		{name: "Docker MCP Gateway", joins: true, streams: true, legacy: streamable("/mcp"), modern: noModern,
			version: p.dockerVersion, tool: colon, command: p.runDocker, files: dockerCatalog,
			env: []string{"DOCKER_MCP_IN_CONTAINER=1"}},
		{name: "mcp-hub", joins: true, streams: true, legacy: endpoint{path: "/mcp", dialect: load.SSE}, modern: noModern,
			version: p.npmVersion("mcp-hub"), tool: underscores, command: p.runMCPHub, files: mcpHubConfig},

		ours("/mcp/{server}, mask off", "/mcp/bench", "mask off", child),
		ours("/mcp", "/mcp", "mask off", child),
		{name: "TBXark mcp-proxy", stdio: true, streams: true, legacy: streamable("/bench/mcp"), modern: noModern,
			version: goVersion(filepath.Join(p.goPeers, "mcp-proxy"), "github.com/TBXark/mcp-proxy"), command: p.runTBXark,
			files: tbxarkConfig},
		{name: "npm mcp-proxy", stdio: true, streams: true, legacy: streamable("/mcp"), modern: stateless("/mcp"),
			version: p.npmVersion("mcp-proxy"), command: func(s site) []string {
				return append([]string{"node", p.npm("mcp-proxy/dist/bin/mcp-proxy.mjs"), "--host", "127.0.0.1", "--port",
					fmt.Sprint(s.port),
					"--server", "stream", "--no-eventStore", "--"}, s.servers[0].stdio...)
			}},
		{name: "supergateway", stdio: true, streams: true, legacy: streamable("/mcp"), modern: stateless("/mcp"),
			version: p.npmVersion("supergateway"), command: func(s site) []string {
				return []string{"node", p.npm("supergateway/dist/index.js"), "--port", fmt.Sprint(s.port), "--stdio",
					strings.Join(s.servers[0].stdio, " "),
					"--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"}
			}},
	}
}

// id returns the name of a contestant with its transport, which makes it unique.
func (c *contestant) id() string {
	if c.stdio {
		return c.name + ", stdio"
	}
	return c.name
}

// endpointFor returns the endpoint for clients of this setup, or the reason why it is unsupported.
func (c *contestant) endpointFor(s setup) endpoint {
	if s.modern {
		return c.modern
	}
	return c.legacy
}

// forwardsUnchanged reports whether a contestant connects to servers over HTTP, forwards results
// unchanged and has sessions. Some cases are only for such contestants.
func (c *contestant) forwardsUnchanged() bool {
	return !c.stdio && !c.masked && c.legacy.dialect != load.Plain
}

// toolOf returns the name of a server's tool as clients call it.
func (c *contestant) toolOf(server, tool string) string {
	if c.tool == nil {
		return tool
	}
	return c.tool(server, tool)
}

func (s server) host() string {
	host, _, _ := strings.Cut(strings.TrimPrefix(s.url, "http://"), "/")
	return host
}

func (p *programs) runCaddy(s site) []string {
	return []string{p.caddy, "run", "--config", s.file("Caddyfile")}
}

// caddyfile returns a Caddyfile with one site that has these directives.
func (s site) caddyfile(directives string) string {
	admin, scheme, tls := "off", "http", ""
	if s.admin {
		admin = "unix/" + s.file(adminSocket)
	}
	if s.tls {
		scheme, tls = "https", fmt.Sprintf("\ttls %s %s\n", s.file(certFile), s.file(keyFile))
	}
	return fmt.Sprintf(`{
	admin %s
	persist_config off
	grace_period 1s
	log {
		level ERROR
	}
}
%s://:%d {
	bind 127.0.0.1
%s%s}
`, admin, scheme, s.port, tls, directives)
}

const (
	adminSocket = "admin.sock"
	certFile    = "cert.pem"
	keyFile     = "key.pem"
)

// guardedClient is the client block of guarded cases. It allows every call and redacts
// nothing, but the gateway must check both for each call.
const guardedClient = `		client bench {
			token ` + token + `
			deny *::delete_*
			allow *
			rate 1000000/1s burst 1000000
			redact "sk-[A-Za-z0-9]{20,}" "ghp_[A-Za-z0-9]{36}"
			redact_fields password
		}
`

// gatewayCaddyfile returns a Caddyfile with mcp_gateway and the servers of a site. The limit
// of sessions on stdio is raised, because HTTP has no such limit.
func gatewayCaddyfile(mask string) func(site) map[string]string {
	return func(s site) map[string]string {
		text := fmt.Sprintf("\tmcp_gateway {\n\t\tseparator __\n\t\t%s\n", mask)
		if s.guarded {
			text += guardedClient
		}
		for _, server := range s.servers {
			if server.stdio != nil {
				text += fmt.Sprintf("\t\tserver %s stdio %s {\n\t\t\tmax_sessions 100000\n\t\t}\n", server.name,
					strings.Join(server.stdio, " "))
			} else {
				text += fmt.Sprintf("\t\tserver %s %s\n", server.name, server.url)
			}
		}
		return map[string]string{"Caddyfile": s.caddyfile(text + "\t}\n")}
	}
}

// nginxConf configures nginx as a plain proxy for Streamable HTTP: keep-alive connections to
// the server, and no buffering, which would delay event streams.
func nginxConf(s site) map[string]string {
	tls := ""
	if s.tls {
		tls = fmt.Sprintf(" ssl http2;\n\t\tssl_certificate %s;\n\t\tssl_certificate_key %s",
			s.file(certFile), s.file(keyFile))
	}
	return map[string]string{"nginx.conf": fmt.Sprintf(`daemon off;
worker_processes auto;
worker_rlimit_nofile 65536;
pid nginx.pid;
error_log stderr crit;
events {
	worker_connections 32768;
}
http {
	access_log off;
	client_max_body_size 0;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	keepalive_requests 1000000;
	upstream bench {
		server %s;
		keepalive 256;
		keepalive_requests 1000000;
	}
	server {
		listen 127.0.0.1:%d%s;
		location / {
			proxy_pass http://bench;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
			proxy_read_timeout 1h;
		}
	}
}
`, s.servers[0].host(), s.port, tls)}
}

func nginxVersion() (string, error) {
	output, err := exec.Command("nginx", "-v").CombinedOutput()
	if err != nil {
		return "", err
	}
	_, version, _ := strings.Cut(strings.TrimSpace(string(output)), "/")
	return version, nil
}

// runTBXark runs TBXark/mcp-proxy, which has an endpoint per server.
func (p *programs) runTBXark(s site) []string {
	return []string{filepath.Join(p.goPeers, "mcp-proxy"), "-config", s.file("config.json")}
}

func tbxarkConfig(s site) map[string]string {
	type object = map[string]any
	servers := object{}
	for _, server := range s.servers {
		servers[server.name] = object{"transportType": "streamable-http", "url": server.url}
		if server.stdio != nil {
			servers[server.name] = object{"command": server.stdio[0], "args": server.stdio[1:]}
		}
	}
	config, _ := json.MarshalIndent(object{
		"mcpProxy": object{
			"baseURL": fmt.Sprintf("http://127.0.0.1:%d", s.port), "addr": fmt.Sprintf("127.0.0.1:%d", s.port),
			"name": "bench", "version": "1", "type": "streamable-http",
			"options": object{"panicIfInvalid": true, "logEnabled": false},
		},
		"mcpServers": servers,
	}, "", "\t") // never fails
	return map[string]string{"config.json": string(config)}
}

// runRelay runs peers/go/relay.
func (p *programs) runRelay(s site) []string {
	command := []string{filepath.Join(p.goPeers, "relay"), fmt.Sprintf("127.0.0.1:%d", s.port)}
	for _, server := range s.servers {
		command = append(command, server.name+"="+server.url)
	}
	return command
}

// runDocker runs docker/mcp-gateway as if in a container, so that it does not need Docker.
// Its servers are remote, with sessions that are reused for all calls.
func (p *programs) runDocker(s site) []string {
	var names []string
	for _, server := range s.servers {
		names = append(names, server.name)
	}
	return []string{filepath.Join(p.goPeers, "docker-mcp"), "gateway", "run",
		"--transport", "streaming", "--port", fmt.Sprint(s.port),
		"--catalog", s.file("catalog.yaml"), "--servers", strings.Join(names, ","),
		"--static", "--long-lived", "--watch=false", "--log-calls=false", "--block-secrets=false"}
}

func dockerCatalog(s site) map[string]string {
	type object = map[string]any
	servers := object{}
	for _, server := range s.servers {
		servers[server.name] = object{"title": server.name, "description": "bench", "prefix": server.name,
			"longLived": true, "type": "remote",
			"remote": object{"transport_type": "streamable", "url": server.url}}
	}
	catalog, _ := json.MarshalIndent(object{"registry": servers}, "", "  ") // never fails; JSON is valid YAML
	return map[string]string{"catalog.yaml": string(catalog)}
}

func (p *programs) dockerVersion() (string, error) {
	output, err := exec.Command(filepath.Join(p.goPeers, "docker-mcp"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("not built: %w", err)
	}
	return strings.TrimSpace(string(output)), nil
}

// runMCPHub runs mcp-hub, which serves clients over HTTP+SSE.
func (p *programs) runMCPHub(s site) []string {
	return []string{"node", p.npm("mcp-hub/dist/cli.js"), "--port", fmt.Sprint(s.port),
		"--config", s.file("config.json")}
}

func mcpHubConfig(s site) map[string]string {
	type object = map[string]any
	servers := object{}
	for _, server := range s.servers {
		servers[server.name] = object{"url": server.url}
	}
	config, _ := json.MarshalIndent(object{"mcpServers": servers}, "", "\t") // never fails
	return map[string]string{"config.json": string(config)}
}

// npm returns the path of a file in an npm package.
func (p *programs) npm(file string) string {
	return filepath.Join(p.npmPeers, "node_modules", file)
}

func (p *programs) npmVersion(name string) func() (string, error) {
	return func() (string, error) {
		if _, err := exec.LookPath("node"); err != nil {
			return "", err
		}
		text, err := os.ReadFile(p.npm(name + "/package.json"))
		if err != nil {
			return "", fmt.Errorf("not installed by npm ci: %w", err)
		}
		var about struct{ Version string }
		err = json.Unmarshal(text, &about)
		return about.Version, err
	}
}

// goVersion returns a function that reads which version of a module a program was built with.
func goVersion(program, module string) func() (string, error) {
	return func() (string, error) {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return "", fmt.Errorf("not built: %w", err)
		}
		for _, dep := range append(info.Deps, &info.Main) {
			if dep.Path == module {
				return dep.Version, nil
			}
		}
		return "", fmt.Errorf("%s is not in %s", module, program)
	}
}

// chosen returns the contestants whose id matches, and always the baseline.
func (p *programs) chosen(names *regexp.Regexp) (chosen []contestant) {
	for _, c := range p.contestants() {
		if c.name == baseline || names.MatchString(c.id()) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// benchServer returns the server "bench", for contestants with one server.
func benchServer(up *upstream.Server, path string, stdio bool) (server, error) {
	s := server{name: "bench", url: up.URL(path)}
	var err error
	if stdio {
		s.stdio, err = upstream.Stdio(path)
	}
	return s, err
}

// namedServers returns n servers whose paths are path and a number. The first is named
// "bench" as in benchServer, the others s1, s2, ….
func namedServers(up *upstream.Server, path string, n int, stdio bool) (servers []server, err error) {
	for i := range n {
		s, err := benchServer(up, fmt.Sprint(path, i), stdio)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			s.name = fmt.Sprintf("s%d", i)
		}
		servers = append(servers, s)
	}
	return servers, nil
}
