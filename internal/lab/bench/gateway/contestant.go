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

// A contestant is something that clients can call a server through.
type contestant struct {
	name    string
	stdio   bool // its servers are children on stdio, else they are reached over HTTP
	masked  bool // it shortens results
	joins   bool // it shows many servers as one
	streams bool // its sessions can be listened to
	https   bool // it serves HTTP/2 with TLS
	guards  bool // it knows clients, and what each of them may do

	// How it is spoken to, by era; a door without a path is none, and says why.
	legacy, modern door

	// tool returns the name of a server's tool. If it is nil, tools have their own names.
	tool func(server, tool string) string

	// command is what is run, with files by their names in s.dir. If it is nil, nothing
	// is: clients go to the server.
	command func(s site) []string
	files   func(s site) map[string]string
	env     []string               // besides what all get
	version func() (string, error) // fails if it is not there
}

// A door is where clients of an era are served.
type door struct {
	path    string
	dialect load.Dialect
	lacks   string // why there is none
}

// A setup is what a case asks of contestants, besides passing calls on.
type setup struct {
	modern  bool // clients speak 2026-07-28
	tls     bool // over HTTP/2 with TLS
	guarded bool // and are let in by a token; rules, rates and redaction apply to them
	admin   bool // the number of goroutines is wanted
}

// token is what clients show where they need one.
const token = "0123456789abcdef0123456789abcdef"

// A site is what a contestant is set up with.
type site struct {
	*installed
	setup
	dir     string
	port    int
	servers []server
}

// file returns the path of a file of the site.
func (s site) file(name string) string { return filepath.Join(s.dir, name) }

// A server is an MCP server behind a contestant: where it is over HTTP, or what it is on
// stdio.
type server struct {
	name, url string
	stdio     []string
}

// installed is where programs are.
type installed struct{ caddy, goPeers, npmPeers string }

const (
	baseline = "Caddy `reverse_proxy`"
	direct   = "direct"
)

// contestants are all that can be measured, in the order in which they are shown. This is
// the one place where their commands and settings stand. Each gets what its documentation
// recommends for production, or what is faster; none writes a log.
func (in *installed) contestants() []contestant {
	underscores := func(server, tool string) string { return server + "__" + tool }
	colon := func(server, tool string) string { return server + ":" + tool }
	streamable := func(path string) door { return door{path: path, dialect: load.Legacy} }
	stateless := func(path string) door { return door{path: path, dialect: load.Modern} }
	ours := func(name, path, mask string, set func(*contestant)) contestant {
		c := contestant{name: "mcp_gateway " + name, masked: mask != "mask off", streams: true, https: true,
			guards: true, legacy: streamable(path), modern: stateless(path),
			version: goVersion(in.caddy, "github.com/caddy-mcp-gateway/caddy-mcp-gateway"),
			command: in.runCaddy, files: gatewayCaddyfile(mask)}
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
		c.modern = door{lacks: "it is plain JSON-RPC, which has no eras"}
	}
	child := func(c *contestant) { c.stdio = true }
	noModern := door{lacks: "it does not speak 2026-07-28"}

	return []contestant{
		{name: direct, streams: true, legacy: streamable(""), modern: stateless("")},
		{name: baseline, streams: true, https: true, legacy: streamable(""), modern: stateless(""),
			version: goVersion(in.caddy, "github.com/caddyserver/caddy/v2"), command: in.runCaddy, files: func(s site) map[string]string {
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
			version: goVersion(filepath.Join(in.goPeers, "mcp-proxy"), "github.com/TBXark/mcp-proxy"), command: in.runTBXark, files: tbxarkConfig},
		{name: "Go SDK relay", joins: true, streams: true, legacy: streamable("/mcp"), modern: stateless("/stateless"),
			version: goVersion(filepath.Join(in.goPeers, "relay"), "github.com/modelcontextprotocol/go-sdk"), tool: underscores, command: in.runRelay},
		{name: "Docker MCP Gateway", joins: true, streams: true, legacy: streamable("/mcp"), modern: noModern,
			version: in.dockerVersion, tool: colon, command: in.runDocker, files: dockerCatalog,
			env: []string{"DOCKER_MCP_IN_CONTAINER=1"}},
		{name: "mcp-hub", joins: true, streams: true, legacy: door{path: "/mcp", dialect: load.SSE}, modern: noModern,
			version: in.npmVersion("mcp-hub"), tool: underscores, command: in.runMCPHub, files: mcpHubConfig},

		ours("/mcp/{server}, mask off", "/mcp/bench", "mask off", child),
		ours("/mcp", "/mcp", "mask off", child),
		{name: "TBXark mcp-proxy", stdio: true, streams: true, legacy: streamable("/bench/mcp"), modern: noModern,
			version: goVersion(filepath.Join(in.goPeers, "mcp-proxy"), "github.com/TBXark/mcp-proxy"), command: in.runTBXark, files: tbxarkConfig},
		{name: "npm mcp-proxy", stdio: true, streams: true, legacy: streamable("/mcp"), modern: stateless("/mcp"),
			version: in.npmVersion("mcp-proxy"), command: func(s site) []string {
				return append([]string{"node", in.npm("mcp-proxy/dist/bin/mcp-proxy.mjs"), "--host", "127.0.0.1", "--port", fmt.Sprint(s.port),
					"--server", "stream", "--no-eventStore", "--"}, s.servers[0].stdio...)
			}},
		{name: "supergateway", stdio: true, streams: true, legacy: streamable("/mcp"), modern: stateless("/mcp"),
			version: in.npmVersion("supergateway"), command: func(s site) []string {
				return []string{"node", in.npm("supergateway/dist/index.js"), "--port", fmt.Sprint(s.port), "--stdio", strings.Join(s.servers[0].stdio, " "),
					"--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"}
			}},
	}
}

// id is the name and what tells contestants of the same name apart.
func (c *contestant) id() string {
	if c.stdio {
		return c.name + ", stdio"
	}
	return c.name
}

// door returns where clients are served, with a reason if they are not.
func (c *contestant) door(s setup) door {
	if s.modern {
		return c.modern
	}
	return c.legacy
}

// isPlain says that a contestant passes on over HTTP what servers answer, as it is, in
// sessions: what cases are about that have only some of the contestants.
func (c *contestant) isPlain() bool {
	return !c.stdio && !c.masked && c.legacy.dialect != load.Plain
}

// toolOf returns the name by which clients call a tool of a server.
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

func (in *installed) runCaddy(s site) []string {
	return []string{in.caddy, "run", "--config", s.file("Caddyfile")}
}

// caddyfile is one with a site that has these directives.
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

// guardedClient is what a client is held to in cases that are guarded. It may do all that
// it does, and nothing of what it gets is redacted: both must be found out for each call.
const guardedClient = `		client bench {
			token ` + token + `
			deny *::delete_*
			allow *
			rate 1000000/1s burst 1000000
			redact "sk-[A-Za-z0-9]{20,}" "ghp_[A-Za-z0-9]{36}"
			redact_fields password
		}
`

// gatewayCaddyfile has mcp_gateway with the servers of a site. Children have as many
// sessions as servers over HTTP.
func gatewayCaddyfile(mask string) func(site) map[string]string {
	return func(s site) map[string]string {
		text := fmt.Sprintf("\tmcp_gateway {\n\t\tseparator __\n\t\t%s\n", mask)
		if s.guarded {
			text += guardedClient
		}
		for _, server := range s.servers {
			if server.stdio != nil {
				text += fmt.Sprintf("\t\tserver %s stdio %s {\n\t\t\tmax_sessions 100000\n\t\t}\n", server.name, strings.Join(server.stdio, " "))
			} else {
				text += fmt.Sprintf("\t\tserver %s %s\n", server.name, server.url)
			}
		}
		return map[string]string{"Caddyfile": s.caddyfile(text + "\t}\n")}
	}
}

// nginxConf makes nginx a plain proxy for Streamable HTTP: connections to the server are
// kept, and nothing is held back, or event streams would wait.
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

// runTBXark runs TBXark/mcp-proxy, which has an endpoint for each server.
func (in *installed) runTBXark(s site) []string {
	return []string{filepath.Join(in.goPeers, "mcp-proxy"), "-config", s.file("config.json")}
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
	}, "", "\t") // which does not fail
	return map[string]string{"config.json": string(config)}
}

// runRelay runs the relay in peers/go.
func (in *installed) runRelay(s site) []string {
	command := []string{filepath.Join(in.goPeers, "relay"), fmt.Sprintf("127.0.0.1:%d", s.port)}
	for _, server := range s.servers {
		command = append(command, server.name+"="+server.url)
	}
	return command
}

// runDocker runs docker/mcp-gateway as in a container that needs no Docker itself: its
// servers are remote, and the sessions with them are kept from one call to the next.
func (in *installed) runDocker(s site) []string {
	var names []string
	for _, server := range s.servers {
		names = append(names, server.name)
	}
	return []string{filepath.Join(in.goPeers, "docker-mcp"), "gateway", "run",
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
	catalog, _ := json.MarshalIndent(object{"registry": servers}, "", "  ") // which does not fail; JSON is YAML
	return map[string]string{"catalog.yaml": string(catalog)}
}

func (in *installed) dockerVersion() (string, error) {
	output, err := exec.Command(filepath.Join(in.goPeers, "docker-mcp"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("it could not be built: %w", err)
	}
	return strings.TrimSpace(string(output)), nil
}

// runMCPHub runs mcp-hub, which serves its clients by HTTP+SSE.
func (in *installed) runMCPHub(s site) []string {
	return []string{"node", in.npm("mcp-hub/dist/cli.js"), "--port", fmt.Sprint(s.port),
		"--config", s.file("config.json")}
}

func mcpHubConfig(s site) map[string]string {
	type object = map[string]any
	servers := object{}
	for _, server := range s.servers {
		servers[server.name] = object{"url": server.url}
	}
	config, _ := json.MarshalIndent(object{"mcpServers": servers}, "", "\t") // which does not fail
	return map[string]string{"config.json": string(config)}
}

// npm returns the path of a file of an npm package.
func (in *installed) npm(file string) string {
	return filepath.Join(in.npmPeers, "node_modules", file)
}

func (in *installed) npmVersion(name string) func() (string, error) {
	return func() (string, error) {
		if _, err := exec.LookPath("node"); err != nil {
			return "", err
		}
		text, err := os.ReadFile(in.npm(name + "/package.json"))
		if err != nil {
			return "", fmt.Errorf("npm ci has not installed it: %w", err)
		}
		var about struct{ Version string }
		err = json.Unmarshal(text, &about)
		return about.Version, err
	}
}

// goVersion returns the version of a module that a program was built with.
func goVersion(program, module string) func() (string, error) {
	return func() (string, error) {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return "", fmt.Errorf("it could not be built: %w", err)
		}
		for _, dep := range append(info.Deps, &info.Main) {
			if dep.Path == module {
				return dep.Version, nil
			}
		}
		return "", fmt.Errorf("%s is not in %s", module, program)
	}
}

// chosen returns the contestants whose name or group matches. The baseline is always one.
func (in *installed) chosen(names *regexp.Regexp) (chosen []contestant) {
	for _, c := range in.contestants() {
		if c.name == baseline || names.MatchString(c.id()) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// benchServer is the one server behind contestants that are set up with one.
func benchServer(up *upstream.Server, path string, stdio bool) (server, error) {
	s := server{name: "bench", url: up.URL(path)}
	var err error
	if stdio {
		s.stdio, err = upstream.Stdio(path)
	}
	return s, err
}

// namedServers are n servers whose paths begin alike: the first is called bench, as the one
// that is alone.
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
