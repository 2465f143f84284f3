//go:build unix

package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// driverCommand is the argument that makes this program the driver of a scenario, which the suite
// starts.
const driverCommand = "drive"

// driverOptions are the flags of the driver.
type driverOptions struct {
	executable string // path of the driver
	caddy      string
	era        string
	port       int    // port of the gateway
	dir        string // directory for the gateway's files
}

// command returns the command line of the driver. The suite passes it to a shell with the URL of
// its server as the last argument.
func (o driverOptions) command() string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	return fmt.Sprintf("%s %s -caddy %s -era %s -port %d -dir %s", quote(o.executable), driverCommand, quote(o.caddy),
		o.era, o.port, quote(o.dir))
}

// A testCase is the scenario of a driver. The suite passes it in the environment.
type testCase struct {
	scenario     string
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
	PrivateKey   string `json:"private_key_pem"`
	Assertion    string `json:"valid_jwt"`
	ToolCalls    []struct {
		Name      string
		Arguments json.RawMessage
	}
}

// metadataDocument is the client id that auth/basic-cimd expects.
const metadataDocument = "https://conformance-test.local/client-metadata.json"

func readTestCase() (test testCase, err error) {
	if text := os.Getenv("MCP_CONFORMANCE_CONTEXT"); text != "" {
		if err := json.Unmarshal([]byte(text), &test); err != nil {
			return test, fmt.Errorf("MCP_CONFORMANCE_CONTEXT: %w", err)
		}
	}
	test.scenario = os.Getenv("MCP_CONFORMANCE_SCENARIO")
	if test.scenario == "" {
		return test, errors.New("MCP_CONFORMANCE_SCENARIO is not set")
	}
	if test.scenario == "auth/basic-cimd" {
		test.ClientID = metadataDocument
	}
	return test, nil
}

// isAuthorization reports whether the scenario is about authorization.
func (test testCase) isAuthorization() bool { return strings.HasPrefix(test.scenario, "auth/") }

// drive starts a gateway in front of the suite's server and uses it as the scenario requires. Its
// error includes the gateway's log.
func drive(ctx context.Context, args []string) error {
	var opts driverOptions
	flags := flag.NewFlagSet(driverCommand, flag.ExitOnError)
	flags.StringVar(&opts.caddy, "caddy", "", "Caddy `binary` with the gateway")
	flags.StringVar(&opts.era, "era", modern, "`era` of the client, legacy or modern")
	flags.IntVar(&opts.port, "port", 0, "`port` of the gateway")
	flags.StringVar(&opts.dir, "dir", "", "`directory` for the gateway's files")
	_ = flags.Parse(args) // exits on errors
	test, err := readTestCase()
	if err != nil {
		return err
	}
	// End before the timeout of the suite.
	ctx, cancel := context.WithTimeout(ctx, clientTimeout*4/5)
	defer cancel()

	log, err := os.Create(filepath.Join(opts.dir, "caddy.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	if err = driveGateway(ctx, opts, test, flags.Arg(0), log); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

func driveGateway(ctx context.Context, opts driverOptions, test testCase, serverURL string, log *os.File) error {
	config := filepath.Join(opts.dir, "Caddyfile")
	text, err := test.caddyfile(opts, serverURL)
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	cmd := caddyrun.Command(ctx, opts.caddy, opts.dir, "run", "--adapter", "caddyfile", "--config", config)
	cmd.Stdout, cmd.Stderr = log, log
	gateway, err := caddyrun.Start(cmd)
	if err != nil {
		return err
	}
	d := newDriver(test, fmt.Sprintf("http://127.0.0.1:%d/mcp", opts.port), opts.era)
	return errors.Join(d.run(ctx), gateway.Stop(5*time.Second))
}

// caddyfile returns the configuration of the gateway.
func (test testCase) caddyfile(opts driverOptions, serverURL string) (string, error) {
	if _, err := url.ParseRequestURI(serverURL); err != nil {
		return "", err
	}
	var oauth strings.Builder
	if test.isAuthorization() {
		oauth.WriteString("oauth {\n\t\t\t\ttrusted_hosts localhost 127.0.0.1\n")
		option := func(name, value string) {
			if value != "" {
				fmt.Fprintf(&oauth, "\t\t\t\t%s %q\n", name, value)
			}
		}
		option("client_id", test.ClientID)
		option("client_secret", test.ClientSecret)
		for name, content := range map[string]string{"private_key": test.PrivateKey, "assertion": test.Assertion} {
			if content == "" {
				continue
			}
			file := filepath.Join(opts.dir, name)
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				return "", err
			}
			option(name, file)
		}
		if test.Assertion != "" {
			option("grant", "jwt_bearer")
		}
		if strings.HasPrefix(test.scenario, "auth/client-credentials-") {
			option("grant", "client_credentials")
		}
		oauth.WriteString("\t\t\t}")
	}
	return fmt.Sprintf(`{
	admin off
	persist_config off
	grace_period 1s
}
http://:%d {
	bind 127.0.0.1
	mcp_gateway {
		separator __
		server conformance %s {
			%s
		}
	}
}
`, opts.port, serverURL, &oauth), nil
}

// A driver uses the gateway as a client.
type driver struct {
	testCase
	client  *mcpclient.Client
	browser *browser

	mu     sync.Mutex // held while a server request is answered
	logins int
	errs   []error // errors of these
}

func newDriver(test testCase, endpoint, era string) *driver {
	return &driver{
		testCase: test,
		client: &mcpclient.Client{URL: endpoint, Modern: era == modern,
			Capabilities: `{"elicitation":{"form":{},"url":{}}}`},
		browser: newBrowser(),
	}
}

// prefix is the prefix of the suite's server, as in the Caddyfile.
const prefix = "conformance__"

// maxLogins is the maximum number of logins of a driver. It is more than any scenario needs, and
// more than auth/scope-retry-limit allows: the gateway must stop before.
const maxLogins = 5

// A tool is a tool in the gateway's list.
type tool struct {
	Name        string
	InputSchema json.RawMessage
}

func (t tool) String() string { return t.Name }

// has reports whether there is a tool with this name.
func has(tools []tool, name string) bool {
	return slices.ContainsFunc(tools, func(t tool) bool { return t.Name == prefix+name })
}

func (d *driver) run(ctx context.Context) error {
	if !d.client.Modern {
		if _, err := d.client.Initialize(ctx, mcpclient.Legacy); err != nil {
			return err
		}
		// Keep a stream open, as the client of the official SDK does.
		stream, closed := d.client.Listen(ctx), make(chan struct{})
		go func() {
			defer close(closed)
			d.client.Respond(ctx, stream, d.responder(ctx))
		}()
		defer func() { stream.Cancel(); <-closed }()
		<-stream.Opened
	}
	tools, err := d.tools(ctx)
	if err != nil {
		return err
	}
	switch {
	case d.isAuthorization():
		if !has(tools, "test-tool") {
			return fmt.Errorf("got tools %s, want %stest-tool", tools, prefix)
		}
	case d.scenario == "json-schema-ref-no-deref":
		return nil // its tool must only be listed
	}
	errs := []error{d.callAll(ctx, tools)}
	if d.scenario == "http-standard-headers" {
		errs = append(errs, d.useAll(ctx, "resources", "read", "uri"), d.useAll(ctx, "prompts", "get", "name"))
	}
	return errors.Join(errs...)
}

// tools returns the tools of the suite's server. If the gateway offers a login tool instead, it
// logs in first.
func (d *driver) tools(ctx context.Context) ([]tool, error) {
	for range maxLogins {
		var list json.RawMessage
		if err := d.request(ctx, "tools/list", nil, &list); err != nil {
			return nil, err
		}
		var result struct{ Tools []tool }
		if err := json.Unmarshal(list, &result); err != nil {
			return nil, err
		}
		d.client.Params = mcp.ParamHeaders{}
		if _, err := d.client.Params.Add(list); err != nil {
			return nil, err
		}
		if !has(result.Tools, "login") {
			return result.Tools, nil
		}
		if err := d.call(ctx, prefix+"login", struct{}{}); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the gateway requires another login after %d", maxLogins)
}

// callAll calls each tool, even if others fail.
func (d *driver) callAll(ctx context.Context, tools []tool) error {
	var errs []error
	for _, t := range tools {
		errs = append(errs, d.call(ctx, t.Name, d.arguments(t, tools)))
	}
	return errors.Join(errs...)
}

// arguments returns the arguments for a tool: those that the scenario defines, or an example for
// its schema.
func (d *driver) arguments(t tool, all []tool) any {
	for _, call := range d.ToolCalls {
		if prefix+call.Name == t.Name {
			return call.Arguments
		}
	}
	if t.Name == prefix+"json_schema_echo" {
		for _, other := range all {
			if other.Name == prefix+"json_schema_2020_12_tool" {
				return map[string]any{"schema": other.InputSchema}
			}
		}
	}
	return example(t.InputSchema)
}

// useAll lists resources or prompts and reads each.
func (d *driver) useAll(ctx context.Context, kind, verb, key string) error {
	var lists map[string]json.RawMessage
	if err := d.request(ctx, kind+"/list", nil, &lists); err != nil {
		return err
	}
	var items []map[string]any
	if err := json.Unmarshal(lists[kind], &items); err != nil {
		return fmt.Errorf("%s/list: %w", kind, err)
	}
	var errs []error
	for _, item := range items {
		var result json.RawMessage
		errs = append(errs, d.request(ctx, kind+"/"+verb, map[string]any{key: item[key]}, &result))
	}
	return errors.Join(errs...)
}

// call calls a tool, which must succeed.
func (d *driver) call(ctx context.Context, name string, arguments any) error {
	var result struct {
		IsError bool
		Content json.RawMessage
	}
	if err := d.request(ctx, "tools/call", map[string]any{"name": name, "arguments": arguments}, &result); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if result.IsError {
		return d.withErrors(fmt.Errorf("%s failed: %s", name, result.Content))
	}
	return nil
}

// request makes a request and responds to the gateway's requests meanwhile.
func (d *driver) request(ctx context.Context, method string, params map[string]any, result any) error {
	text := ""
	if params != nil {
		encoded, err := json.Marshal(params)
		if err != nil {
			return err
		}
		text = string(encoded)
	}
	got := d.client.Request(ctx, method, text, d.responder(ctx))
	err := got.Err
	switch {
	case err != nil:
	case got.Result == nil:
		err = fmt.Errorf("got %d %.1000s, want a result", got.Status, got.Body)
	default:
		err = json.Unmarshal(got.Result, result)
	}
	if err != nil {
		return d.withErrors(fmt.Errorf("%s: %w", method, err))
	}
	return nil
}

// withErrors adds errors of earlier responses, which may be the cause, to an error.
func (d *driver) withErrors(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(append(d.errs, err)...)
}

// responder returns a function that responds to the gateway's requests.
func (d *driver) responder(ctx context.Context) mcpclient.Responder {
	return func(method string, params json.RawMessage) string {
		d.mu.Lock()
		defer d.mu.Unlock()
		result, err := d.respond(ctx, method, params)
		if err != nil {
			d.errs = append(d.errs, err)
			return `{"action":"cancel"}`
		}
		return result
	}
}

// respond returns the response to an elicitation. It fills in forms with example values, and logs
// in at a URL before it accepts.
func (d *driver) respond(ctx context.Context, method string, params json.RawMessage) (string, error) {
	var question struct {
		Mode, URL       string
		RequestedSchema json.RawMessage
	}
	if err := json.Unmarshal(params, &question); err != nil || method != "elicitation/create" {
		return "", fmt.Errorf("unexpected request %s %s", method, params)
	}
	if question.Mode != "url" {
		content, err := json.Marshal(example(question.RequestedSchema))
		return `{"action":"accept","content":` + string(content) + `}`, err
	}
	if d.logins == maxLogins {
		return "", fmt.Errorf("another login was requested after %d", maxLogins)
	}
	d.logins++
	return `{"action":"accept"}`, d.browser.login(ctx, question.URL)
}

// example returns a value for a simple JSON schema: its default, if it has one.
func example(schema json.RawMessage) any {
	var s struct {
		Type       any
		Default    any
		Enum       []any
		Properties map[string]json.RawMessage
	}
	_ = json.Unmarshal(schema, &s)
	switch {
	case s.Default != nil:
		return s.Default
	case len(s.Enum) > 0:
		return s.Enum[0]
	}
	switch s.Type {
	case "object":
		object := make(map[string]any)
		for name, property := range s.Properties {
			object[name] = example(property)
		}
		return object
	case "array":
		return []any{}
	case "string":
		return "text"
	case "number", "integer":
		return 1
	case "boolean":
		return true
	}
	return nil
}

// A browser opens pages, submits forms and follows redirects. It keeps cookies.
type browser struct{ client http.Client }

func newBrowser() *browser {
	jar, _ := cookiejar.New(nil) // never fails
	return &browser{http.Client{
		Jar: jar,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 10 {
				return errors.New("too many redirects")
			}
			req.Header.Del("Origin") // browsers send it only with the POST
			return nil
		},
	}}
}

// A page is a loaded page.
type page struct {
	url  *url.URL
	text string // HTML
}

// A form is the form of a page.
type form struct {
	method string
	action *url.URL
	values url.Values
}

// login opens a login page of the gateway and submits its form. The authorization server, to
// which the form leads, must redirect the browser back to the gateway.
func (b *browser) login(ctx context.Context, address string) error {
	login, err := b.load(ctx, http.MethodGet, address, "", nil)
	if err != nil {
		return err
	}
	form, err := login.form()
	if err != nil {
		return err
	}
	if form.method != http.MethodPost {
		return fmt.Errorf("login page %s: got a form with method %s, want POST", login.url, form.method)
	}
	end, err := b.load(ctx, form.method, form.action.String(), login.url.Scheme+"://"+login.url.Host, form.values)
	if err != nil {
		return err
	}
	if end.url.Host != login.url.Host {
		return fmt.Errorf("the login ended at %s, want a page of the gateway", end.url)
	}
	return nil
}

// load returns a page, which must have status 200.
func (b *browser) load(ctx context.Context, method, address, origin string, values url.Values) (*page, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(values.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/html,*/*;q=0.8")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", origin)
	}
	res, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: got %d %q", res.Request.Method, res.Request.URL.Path, res.StatusCode,
			visibleText(string(text)))
	}
	return &page{res.Request.URL, string(text)}, nil
}

// markup matches the parts of a page that a browser does not show as text.
var markup = regexp.MustCompile(`(?s)<(style|title)\b.*?</(style|title)>|<[^>]*>`)

// visibleText returns the text of a page in one line.
func visibleText(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(markup.ReplaceAllString(page, " "))), " ")
}

// form returns the only form of a page.
func (p *page) form() (*form, error) {
	var found []*form
	tokens := xml.NewDecoder(strings.NewReader(p.text))
	tokens.Strict, tokens.AutoClose, tokens.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		token, err := tokens.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("page %s: %w", p.url, err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attributes := make(map[string]string)
		for _, a := range start.Attr {
			attributes[strings.ToLower(a.Name.Local)] = a.Value
		}
		switch name := strings.ToLower(start.Name.Local); {
		case name == "form":
			action, err := p.url.Parse(attributes["action"])
			if err != nil {
				return nil, err
			}
			found = append(found, &form{strings.ToUpper(attributes["method"]), action, url.Values{}})
		case name == "input" && attributes["name"] != "" && len(found) > 0:
			found[len(found)-1].values.Set(attributes["name"], attributes["value"])
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("page %s: got %d forms, want 1\n%s", p.url, len(found), p.text)
	}
	return found[0], nil
}
