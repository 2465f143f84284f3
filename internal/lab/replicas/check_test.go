//go:build linux

package replicas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// TestStoreIsChecked checks how operators see the state of the store: with caddy mcp check, for a
// running Caddy and for a file, and in the overview of the admin API.
func TestStoreIsChecked(t *testing.T) {
	parallel(t)
	const password = "not-to-be-seen"
	redis := replicastest.StartRedis(t, "--requirepass", password)
	c := newCaddy(t, block("mcp_gateway", "separator __", block("server sample", "mcp_sample")),
		block("mcp_store redis redis://:"+password+"@"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	location := `redis at redis://` + regexp.QuoteMeta(redis.Addr)
	arguments := map[string][]string{
		"the running Caddy": {"--address", strings.TrimPrefix(c.admin, "http://")},
		"a file":            {"--config", c.file},
	}
	for name, args := range arguments {
		c.runCheck(t, name, 0, `^mcp_store  up in \d+\.\d ms  `+location+`\nsample     up in .*tokens\n$`, args...)
		c.runCheck(t, name+", one server", 0, `^sample  up in .*tokens\n$`, append(args, "sample")...)
		out := c.runCheck(t, name+", as JSON", 0, ``, append(args, "--json")...)
		var checked []struct {
			Name, Engine, Address string
			Up                    bool
			Seconds               float64
		}
		if err := json.Unmarshal([]byte(out), &checked); err != nil || len(checked) != 2 || checked[1].Name != "sample" {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		if s := checked[0]; s.Name != "mcp_store" || s.Engine != "redis" || s.Address != "redis://"+redis.Addr || !s.Up ||
			s.Seconds <= 0 {
			t.Errorf("%s: %s", name, out)
		}
	}
	if s := c.store(t); s.Engine != "redis" || s.Address != "redis://"+redis.Addr || !s.Up || s.Error != "" ||
		s.Waiting != 0 {
		t.Errorf("got %+v in the overview", s)
	}

	redis.Pause()
	for name, args := range arguments {
		c.runCheck(t, name+", stalled", 1, `^mcp_store  down: .+ \(`+location+`\)\nsample     up in `, args...)
	}
	redis.Continue()
	redis.Stop()
	for name, args := range arguments {
		c.runCheck(t, name+", stopped", 1, `^mcp_store  down: .*connection refused.* \(`+location+`\)\nsample     up in `,
			args...)
	}
	if s := c.store(t); s.Up || s.Error == "" || s.Outages == 0 {
		t.Errorf("got %+v in the overview", s)
	}
	redis.Restart()
	await.Until(t, "the store to be up", func() bool { return c.store(t).Up })
	for name, args := range arguments {
		c.runCheck(t, name+", again", 0, `^mcp_store  up in `, args...)
	}
}

// TestFullStoreIsChecked checks that they also see that the store is full.
func TestFullStoreIsChecked(t *testing.T) {
	parallel(t)
	redis := replicastest.StartRedis(t, "--maxmemory", "1")
	c := newCaddy(t, block("mcp_gateway", "separator __", block("server sample", "mcp_sample")),
		block("mcp_store redis redis://"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	arguments := map[string][]string{
		"the running Caddy": {"--address", strings.TrimPrefix(c.admin, "http://")},
		"a file":            {"--config", c.file},
	}
	for name, args := range arguments {
		c.runCheck(t, name, 0, `^mcp_store  up in \d+\.\d ms, but full  redis at redis://`, args...)
	}
	if s := c.store(t); !s.Up || !s.Full {
		t.Errorf("got %+v in the overview", s)
	}
	expect(t, redis, "+OK", "CONFIG", "SET", "maxmemory", "0")
	for name, args := range arguments {
		c.runCheck(t, name+", with room", 0, `^mcp_store  up in \d+\.\d ms  redis at redis://`, args...)
	}
	await.Until(t, "the store to have room", func() bool { return !c.store(t).Full })
	c.logged(t, "shared store is full", "shared store has room again")
}

// logged checks that each of these messages is in the log once.
func (c *caddy) logged(t *testing.T, messages ...string) {
	t.Helper()
	log, err := os.ReadFile(c.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range messages {
		if n := strings.Count(string(log), message); n != 1 {
			t.Errorf("logged %d times, want once: %s", n, message)
		}
	}
}

// TestStoreWithoutGateway checks that the admin API shows a store that only a mask uses.
func TestStoreWithoutGateway(t *testing.T) {
	redis := replicastest.StartRedis(t)
	c := newCaddy(t, "tool_result_mask\nrespond ok", "order tool_result_mask first",
		block("mcp_store redis redis://"+redis.Addr, "session_key {env.MCP_SESSION_KEY}"))
	c.start(t)
	if s := c.store(t); !s.Up || s.Address != "redis://"+redis.Addr {
		t.Errorf("got %+v in the overview", s)
	}
	if got := post(c.admin+"/mcp_gateway/store/check", ""); got.Status != http.StatusOK || !strings.Contains(got.Body,
		`"up":true`) {
		t.Errorf("got %d %s %v, want an available store", got.Status, got.Body, got.Err)
	}
}

// runCheck runs caddy mcp check, compares its status and output, and returns the output.
func (c *caddy) runCheck(t *testing.T, name string, status int, want string, args ...string) string {
	t.Helper()
	binary, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := caddyrun.Command(t.Context(), binary, filepath.Dir(c.file), append([]string{"mcp", "check"}, args...)...)
	cmd.Env = append(cmd.Env, c.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != status || !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%s: got status %d, want %d and %s\n%s%s", name, got, status, want, &out, &errs)
	}
	if all := out.String() + errs.String(); strings.Contains(all, "not-to-be-seen") || strings.Contains(all, sessionKey) {
		t.Errorf("%s: prints a secret:\n%s", name, all)
	}
	return out.String()
}

// A storeStatus is the state of the store in the overview of the admin API.
type storeStatus struct {
	Engine, Address, Error string
	Up, Full               bool
	Outages                int
	Waiting                int `json:"writes_waiting"`
}

func (c *caddy) store(t *testing.T) storeStatus {
	t.Helper()
	text := []byte(c.adminGet(t, "/mcp_gateway/overview"))
	var overview struct{ Store storeStatus }
	if err := json.Unmarshal(text, &overview); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "not-to-be-seen") || strings.Contains(string(text), sessionKey) {
		t.Errorf("the overview contains a secret: %s", text)
	}
	return overview.Store
}

const shipped = "../../../packaging/replicas/"

// TestShippedFiles runs the shipped Caddyfile of replicas, validates that of the balancer, and
// checks that the manifests provide what both need.
func TestShippedFiles(t *testing.T) {
	redis := replicastest.StartRedis(t)
	text, err := os.ReadFile(shipped + "Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	environment := []string{"REDIS_URL=redis://" + redis.Addr, "AGENTS_TOKEN=" + agentToken(0), "MCP_SESSION_KEY=" +
		sessionKey}
	var replicas []*caddy
	for range 2 {
		// newCaddy has its own site and admin addresses.
		options, site, _ := strings.Cut(strings.TrimPrefix(string(text[strings.Index(string(text), "\n{"):]), "\n{\n"),
			"\n}\n\n:8080 {\n")
		c := newCaddy(t, strings.TrimSuffix(strings.TrimSpace(site), "}"), strings.Replace(options, "\tmetrics\n", "", 1))
		c.env = environment
		c.start(t)
		replicas = append(replicas, c)
	}
	defer connections.CloseIdleConnections()
	binary, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	// The probes of the image and of kubernetes.yaml. Kubernetes uses the address of the pod as host.
	probe := caddyrun.Command(t.Context(), binary, t.TempDir(), "mcp-health", "--config", replicas[0].file)
	probe.Env = append(probe.Env, environment...)
	if out, err := probe.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if got := statusWithHost(t, "10.1.2.3:8080", replicas[0].url+"/mcp/health"); got != http.StatusOK {
		t.Errorf("the readiness probe gets %d, want 200", got)
	}
	client := newClient(0, true)
	client.URL = replicas[0].url + "/mcp"
	got := client.Start(t.Context(), "tools/call", toolCall("sample__read_log", `{"lines":2000}`)).Finish()
	client.URL = replicas[1].url + "/mcp"
	got = client.Start(t.Context(), "tools/call", toolCall("recover_observation",
		`{"id":"`+originalID.FindString(got.Raw)+`"}`)).Finish()
	if got.Result == nil || strings.Contains(got.Raw, `"isError":true`) {
		t.Errorf("recovering at the other replica: got %d %.500s", got.Status, got.Body)
	}

	if out, err := caddyrun.Command(t.Context(), binary, t.TempDir(), "validate", "--adapter", "caddyfile", "--config",
		shipped+"balancer.Caddyfile").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}

	for _, name := range []string{"compose.yaml", "kubernetes.yaml"} {
		all, err := os.ReadFile(filepath.Join(shipped, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range environment {
			if variable, _, _ := strings.Cut(pair, "="); !strings.Contains(string(all), variable) {
				t.Errorf("%s does not set %s", name, variable)
			}
		}
		count := 0
		for decoder := yaml.NewDecoder(strings.NewReader(string(all))); ; {
			var object map[string]any
			err := decoder.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if strings.Contains(fmt.Sprint(object), "replicas:3") {
				count++
			}
		}
		if count != 1 || strings.Contains(string(all), "sessionAffinity") {
			t.Errorf("%s does not have three replicas without session affinity", name)
		}
	}
}

// statusWithHost requests a page with this Host header and returns the status.
func statusWithHost(t *testing.T, host, address string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	res, err := (&http.Client{Transport: connections}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// TestManifestRefersToItself checks that references between parts of kubernetes.yaml exist.
func TestManifestRefersToItself(t *testing.T) {
	file, err := os.Open(shipped + "kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	type workload struct {
		Kind     string
		Metadata struct{ Name string }
		Spec     struct {
			Selector    any
			PodSelector any    `yaml:"podSelector"`
			ServiceName string `yaml:"serviceName"`
			Ports       []struct {
				TargetPort string `yaml:"targetPort"`
			}
			VolumeClaimTemplates []struct{ Metadata struct{ Name string } } `yaml:"volumeClaimTemplates"`
			Template             struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Volumes    []struct{ Name string }
					Containers []struct {
						Ports        []struct{ Name string }
						Readiness    map[string]any          `yaml:"readinessProbe"`
						VolumeMounts []struct{ Name string } `yaml:"volumeMounts"`
					}
				}
			}
		}
	}
	var all []workload
	for decoder := yaml.NewDecoder(file); ; {
		var w workload
		err := decoder.Decode(&w)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	labels, ports, services := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, w := range all {
		if app := w.Spec.Template.Metadata.Labels["app"]; app != "" {
			labels[app] = true
		}
		if w.Kind == "Service" {
			services[w.Metadata.Name] = true
		}
		volumes := map[string]bool{}
		for _, v := range w.Spec.Template.Spec.Volumes {
			volumes[v.Name] = true
		}
		for _, v := range w.Spec.VolumeClaimTemplates {
			volumes[v.Metadata.Name] = true
		}
		for _, c := range w.Spec.Template.Spec.Containers {
			if c.Readiness == nil {
				t.Errorf("%s %s has no readiness probe", w.Kind, w.Metadata.Name)
			}
			for _, p := range c.Ports {
				ports[p.Name] = true
			}
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("%s %s mounts %s, which it does not have", w.Kind, w.Metadata.Name, m.Name)
				}
			}
		}
		if w.Kind == "Deployment" && w.Spec.Template.Spec.Grace <= 30 { // grace_period of the Caddyfile
			t.Errorf("%s ends after %d s, before its calls do", w.Metadata.Name, w.Spec.Template.Spec.Grace)
		}
	}
	selectors := 0
	for _, w := range all {
		if w.Spec.ServiceName != "" && !services[w.Spec.ServiceName] {
			t.Errorf("%s %s: no service %s", w.Kind, w.Metadata.Name, w.Spec.ServiceName)
		}
		for _, p := range w.Spec.Ports {
			if !ports[p.TargetPort] {
				t.Errorf("%s %s: no container has a port %s", w.Kind, w.Metadata.Name, p.TargetPort)
			}
		}
		for _, found := range regexp.MustCompile(`app:([a-z-]+)`).FindAllStringSubmatch(fmt.Sprint(w.Spec.Selector,
			w.Spec.PodSelector), -1) {
			selectors++
			if !labels[found[1]] {
				t.Errorf("%s %s: no pod has the label %s", w.Kind, w.Metadata.Name, found[1])
			}
		}
	}
	if selectors == 0 {
		t.Error("nothing selects pods")
	}
}
