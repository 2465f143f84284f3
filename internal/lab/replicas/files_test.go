//go:build linux

package replicas

import (
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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

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
