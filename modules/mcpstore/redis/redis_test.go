package redis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "redis.sock")
	replicastest.StartRedis(t, "--unixsocket", path)
	replicastest.TestEngine(t, func() replicas.Engine { return openEngine(t, Redis{URL: "unix://" + path + "?db=3"}) })
}

// rules are the ACL rules that docs/scale.md recommends for a user.
const rules = "~caddy-mcp:* &caddy-mcp:* ~test:* &test:* -@all +hello +ping +select +time +get +mget +set +del" +
	" +eval +evalsha +zadd +zrange +zrem +hget +hset +hdel +pttl +pexpire" +
	" +publish +subscribe +unsubscribe +spublish +ssubscribe +sunsubscribe +cluster|slots +role"

func TestUser(t *testing.T) {
	user := append([]string{"--user", "gateway", "on", ">secret"}, strings.Fields(rules)...)
	server := replicastest.StartRedis(t, append(user, "--user", "default", "off")...)
	settings := Redis{URL: "redis://" + server.Addr, Username: "gateway", Password: "secret"}
	replicastest.TestEngine(t, func() replicas.Engine { return openEngine(t, settings) })
}

func TestTLS(t *testing.T) {
	files := certificates(t)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(replicastest.FreePort(t)))
	_, port, _ := net.SplitHostPort(address)
	replicastest.StartRedis(t, "--tls-port", port,
		"--tls-ca-cert-file", files["ca"], "--tls-cert-file", files["server"], "--tls-key-file", files["server key"])
	settings := Redis{URL: "rediss://" + address, TLS: &TLS{
		CA: files["ca"], Certificate: files["client"], Key: files["client key"], ServerName: "redis.test",
	}}
	replicastest.TestEngine(t, func() replicas.Engine { return openEngine(t, settings) })

	for name, change := range map[string]func(*TLS){
		"another name":   func(s *TLS) { s.ServerName = "other.test" },
		"no certificate": func(s *TLS) { s.Certificate, s.Key = "", "" },
		"no authority":   func(s *TLS) { s.CA = "" },
	} {
		t.Run(name, func(t *testing.T) {
			other := *settings.TLS
			change(&other)
			wantUnusable(t, openEngine(t, Redis{URL: settings.URL, TLS: &other}))
		})
	}
}

// certificates returns PEM files of an authority, a server and a client.
func certificates(t *testing.T) map[string]string {
	t.Helper()
	files, dir := map[string]string{}, t.TempDir()
	write := func(name, kind string, der []byte) {
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var authority *x509.Certificate
	var authorityKey *ecdsa.PrivateKey
	for i, name := range []string{"ca", "server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
			DNSNames: []string{"redis.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
				x509.ExtKeyUsageClientAuth},
		}
		if authority == nil {
			template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
			authority, authorityKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), authorityKey)
		if err != nil {
			t.Fatal(err)
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(name, "CERTIFICATE", der)
		write(name+" key", "PRIVATE KEY", keyDER)
	}
	return files
}

func TestCluster(t *testing.T) {
	nodes := cluster(t)
	settings := Redis{URL: "redis://" + nodes[0].Addr, Addresses: []string{nodes[1].Addr, nodes[2].Addr}, Cluster: true}
	replicastest.TestEngine(t, func() replicas.Engine { return openEngine(t, settings) })
}

// cluster starts a cluster of three masters.
func cluster(t *testing.T) (nodes []*replicastest.Redis) {
	t.Helper()
	var buses []string
	for range 3 {
		bus := strconv.Itoa(replicastest.FreePort(t))
		buses = append(buses, bus)
		nodes = append(nodes, replicastest.StartRedis(t, "--cluster-enabled", "yes", "--cluster-port", bus,
			"--cluster-node-timeout", "2000"))
	}
	const slots = 16384
	for i, node := range nodes {
		expect(t, node, "+OK", "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/3), strconv.Itoa((i+1)*slots/3-1))
		expect(t, node, "+OK", "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	for i, node := range nodes[1:] {
		host, port, _ := net.SplitHostPort(node.Addr)
		expect(t, nodes[0], "+OK", "CLUSTER", "MEET", host, port, buses[i+1])
	}
	for _, node := range nodes {
		await.Until(t, "the cluster is complete", func() bool {
			info := node.Do("CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return nodes
}

func expect(t *testing.T, server *replicastest.Redis, want string, command ...string) {
	t.Helper()
	if got := server.Do(command...); got != want {
		t.Fatalf("%v: %s, want %s", command, got, want)
	}
}

// A sentinelSet is a server with a replica, and sentinels that watch them.
type sentinelSet struct {
	master, replica *replicastest.Redis
	sentinels       []*replicastest.Redis
}

func startSet(t *testing.T) (s sentinelSet) {
	t.Helper()
	s.master = replicastest.StartRedis(t)
	host, port, _ := net.SplitHostPort(s.master.Addr)
	s.replica = replicastest.StartRedis(t, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0")
	await.Until(t, "the replica follows", func() bool {
		return strings.Contains(s.replica.Do("INFO", "replication"), "master_link_status:up")
	})
	for range 3 {
		file := filepath.Join(t.TempDir(), "sentinel.conf")
		config := fmt.Sprintf("sentinel monitor shared %s %s 2\nsentinel down-after-milliseconds shared 1000\nsentinel "+
			"failover-timeout shared 6000\n", host, port)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		s.sentinels = append(s.sentinels, replicastest.StartSentinel(t, file))
	}
	for _, sentinel := range s.sentinels {
		await.Until(t, "the sentinels know each other and the replica", func() bool {
			info := sentinel.Do("INFO", "sentinel")
			return strings.Contains(info, "slaves=1,sentinels=3")
		})
	}
	return s
}

func (s sentinelSet) settings() Redis {
	return Redis{
		URL: "redis://" + s.sentinels[0].Addr, Addresses: []string{s.sentinels[1].Addr, s.sentinels[2].Addr},
		Sentinel: &Sentinel{Master: "shared"},
	}
}

func TestSentinel(t *testing.T) {
	s := startSet(t)
	replicastest.TestEngine(t, func() replicas.Engine { return openEngine(t, s.settings()) })
}

// Address is for operators and logs, so it has no credentials.
func TestAddressHasNoCredentials(t *testing.T) {
	for want, settings := range map[string]Redis{
		"redis://127.0.0.1:6379":      {URL: "redis://127.0.0.1:6379", Username: "ann", Password: "secret"},
		"rediss://redis.test:6380/2":  {URL: "rediss://ann:secret@redis.test:6380/2"},
		"redis://redis.test":          {URL: "redis://:secret@redis.test"},
		"unix:///run/redis.sock?db=3": {URL: "unix://ann:secret@/run/redis.sock?db=3"},
		"redis://a:26379 b:1 c:2":     {URL: "redis://ann:secret@a:26379", Addresses: []string{"b:1", "c:2"}},
		"":                            {URL: "redis://ann:sec ret@%"},
	} {
		if got := settings.Address(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTLSFiles(t *testing.T) {
	for _, test := range []struct {
		tls  *TLS
		want []string
	}{
		{nil, nil},
		{&TLS{ServerName: "redis.test"}, nil},
		{&TLS{CA: "ca"}, []string{"ca"}},
		{&TLS{CA: "ca", Certificate: "cert", Key: "key"}, []string{"ca", "cert", "key"}},
	} {
		if got := (&Redis{TLS: test.tls}).Files(); !slices.Equal(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
