// Package redis implements the engine redis of mcp_store, for Redis and Valkey.
package redis

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

func init() { caddy.RegisterModule(Redis{}) }

// Redis stores the state of replicas in a Redis server, in servers managed by Sentinel, or in a
// Redis Cluster. Valkey works the same.
//
// All texts may have placeholders of the environment and of files, such as {env.REDIS_URL}.
type Redis struct {
	// URL of the server: redis://[<user>:<password>@]<host>[:<port>][/<database>], rediss:// for TLS,
	// or unix://<path>[?db=<database>]. With Sentinel it is the URL of a sentinel, with Cluster that
	// of a node. Required.
	URL string `json:"url,omitempty"`

	// More sentinels, or more nodes of the cluster, as <host>:<port>. Default: none
	Addresses []string `json:"addresses,omitempty"`

	// The user name. Default: that of the URL, or else Redis' default user
	Username string `json:"username,omitempty"`

	// The password. Default: that of the URL, or else none
	Password string `json:"password,omitempty"`

	// TLS settings, for a rediss:// URL. Default: the system's authorities, no client certificate
	TLS *TLS `json:"tls,omitempty"`

	// Sentinel settings. If set, url and addresses are those of sentinels. Default: no Sentinel
	Sentinel *Sentinel `json:"sentinel,omitempty"`

	// Whether the server is a node of a Redis Cluster, which needs version 7 or later. Default: false
	Cluster bool `json:"cluster,omitempty"`

	option rueidis.ClientOption
}

// TLS configures TLS connections.
type TLS struct {
	// PEM file with the certificate authorities to trust. Default: the system's
	CA string `json:"ca,omitempty"`

	// PEM files with the client certificate and its key. They are read again for every connection.
	// Default: none
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`

	// Name that the server's certificate must have. Default: the host of the server's address
	ServerName string `json:"server_name,omitempty"`
}

// Sentinel configures Redis Sentinel.
type Sentinel struct {
	// Name of the master, as configured in the sentinels. Required.
	Master string `json:"master,omitempty"`

	// User name and password of the sentinels. Default: none
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (Redis) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "mcp_store.redis", New: func() caddy.Module { return new(Redis) }}
}

// Provision replaces placeholders and checks the settings.
func (r *Redis) Provision(caddy.Context) (err error) {
	replacer := caddy.NewReplacer()
	for _, text := range r.texts() {
		*text.value, err = replacer.ReplaceOrErr(*text.value, true, true)
		if err != nil {
			return fmt.Errorf("%s: %w", text.name, err)
		}
	}
	r.option, err = r.options()
	return err
}

type text struct {
	name  string
	value *string
}

// texts returns all text settings. Placeholders are replaced in place, because the settings
// identify the store.
func (r *Redis) texts() []text {
	all := []text{{"url", &r.URL}, {"username", &r.Username}, {"password", &r.Password}}
	for i := range r.Addresses {
		all = append(all, text{"addresses", &r.Addresses[i]})
	}
	if t := r.TLS; t != nil {
		all = append(all, text{"tls: ca", &t.CA}, text{"tls: cert", &t.Certificate}, text{"tls: cert", &t.Key},
			text{"tls: server_name", &t.ServerName})
	}
	if s := r.Sentinel; s != nil {
		all = append(all, text{"sentinel", &s.Master}, text{"sentinel: username", &s.Username},
			text{"sentinel: password", &s.Password})
	}
	return all
}

// options returns the options of the Redis client.
func (r *Redis) options() (rueidis.ClientOption, error) {
	option, err := parseURL(r.URL)
	if err != nil {
		return option, fmt.Errorf("url: %w", err)
	}
	for _, address := range r.Addresses {
		if _, port, err := net.SplitHostPort(address); err != nil || !isPort(port) {
			return option, fmt.Errorf("addresses: %q is not <host>:<port>", address)
		}
		option.InitAddress = append(option.InitAddress, address)
	}
	if r.Username != "" {
		option.Username = r.Username
	}
	if r.Password != "" {
		option.Password = r.Password
	}
	switch {
	case r.Cluster && r.Sentinel != nil:
		return option, errors.New("cluster: cannot be combined with sentinel")
	case r.Cluster && option.SelectDB != 0:
		return option, fmt.Errorf("url: a cluster has no database %d", option.SelectDB)
	case len(r.Addresses) > 0 && !r.Cluster && r.Sentinel == nil:
		return option, errors.New("addresses: only supported with sentinel or cluster")
	case r.Sentinel != nil && r.Sentinel.Master == "":
		return option, errors.New("sentinel: missing master name")
	case option.Username != "" && option.Password == "":
		return option, errors.New("password: missing for the username")
	case r.TLS != nil && option.TLSConfig == nil:
		return option, errors.New("tls: url must begin with rediss://")
	}
	option.ForceSingleClient = !r.Cluster && r.Sentinel == nil
	if r.TLS != nil {
		if err := r.TLS.apply(option.TLSConfig); err != nil {
			return option, fmt.Errorf("tls: %w", err)
		}
	}
	if r.Sentinel != nil {
		option.Sentinel = rueidis.SentinelOption{
			MasterSet: r.Sentinel.Master, Username: r.Sentinel.Username, Password: r.Sentinel.Password,
			TLSConfig: option.TLSConfig,
		}
	}
	return option, nil
}

// parseURL parses the URL of a server. Errors do not repeat it, because it may contain a password.
func parseURL(text string) (option rueidis.ClientOption, err error) {
	forms := errors.New("expected redis://<host>:<port>, rediss://<host>:<port> or unix://<path>")
	if strings.Contains(text, "@") {
		forms = fmt.Errorf("%w; escape special characters of the password (such as %%23 for #),"+
			" or use the subdirective password", forms)
	}
	u, err := url.Parse(text)
	switch {
	case text == "":
		return option, errors.New("missing")
	case err != nil, u.Fragment != "":
		return option, forms
	case u.Scheme == "unix" && u.Path == "", u.Scheme != "unix" && u.Hostname() == "":
		return option, forms
	case u.Scheme != "unix" && u.User == nil && strings.Contains(text, "@"): // the password contains a / or ?
		return option, forms
	case u.Port() != "" && !isPort(u.Port()):
		return option, fmt.Errorf("%s is not a port", u.Port())
	}
	for name := range u.Query() {
		if u.Scheme != "unix" || name != "db" {
			return option, fmt.Errorf("the parameter %s is not supported", name)
		}
	}
	switch u.Scheme {
	case "redis", "rediss", "unix":
	default:
		return option, forms
	}
	option, err = rueidis.ParseURL(text)
	if err != nil {
		return option, errors.New(strings.TrimPrefix(err.Error(), "redis: "))
	}
	if option.TLSConfig != nil {
		option.TLSConfig.ServerName = "" // use the host of each address
	}
	return option, nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// apply applies the settings to a TLS configuration.
func (t *TLS) apply(config *tls.Config) error {
	config.ServerName = t.ServerName
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("ca: %s has no certificates", t.CA)
		}
	}
	if t.Certificate == "" && t.Key == "" {
		return nil
	}
	certificate, key := t.Certificate, t.Key
	read := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		return &pair, err
	}
	if _, err := read(nil); err != nil {
		return fmt.Errorf("cert: %w", err)
	}
	config.GetClientCertificate = read
	return nil
}

// Open implements mcpstore.Opener.
func (r *Redis) Open(logger *zap.Logger) (replicas.Engine, error) { return open(r.option, logger), nil }

// UnmarshalCaddyfile sets up the engine from Caddyfile tokens. Syntax:
//
//	mcp_store redis <url> [<addresses...>] {
//		username <name>
//		password <password>
//		tls {
//			ca          <file>
//			cert        <file> <key file>
//			server_name <name>
//		}
//		sentinel <master> {
//			username <name>
//			password <password>
//		}
//		cluster  on|off
//	}
func (r *Redis) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume engine name
	args := d.RemainingArgs()
	if len(args) == 0 {
		return setting.Expected(d, "mcp_store redis", "<url> [<addresses...>]")
	}
	r.URL, r.Addresses = args[0], args[1:]
	return setting.BlockChecked(d, setting.Lines{
		"username": setting.Text(&r.Username),
		"password": setting.Secret(&r.Password),
		"cluster":  setting.Switch(&r.Cluster),
		"tls": func(d *caddyfile.Dispenser) error {
			r.TLS = new(TLS)
			if d.NextArg() {
				return setting.Expected(d, "tls", "{ ... }")
			}
			return setting.Block(d, setting.Lines{
				"ca":          setting.Text(&r.TLS.CA),
				"server_name": setting.Text(&r.TLS.ServerName),
				"cert": func(d *caddyfile.Dispenser) error {
					if !d.AllArgs(&r.TLS.Certificate, &r.TLS.Key) {
						return setting.Expected(d, "cert", "<file> <key file>")
					}
					return nil
				},
			})
		},
		"sentinel": func(d *caddyfile.Dispenser) error {
			r.Sentinel = new(Sentinel)
			if args := d.RemainingArgs(); len(args) == 1 {
				r.Sentinel.Master = args[0]
			} else {
				return setting.Expected(d, "sentinel", "<master>")
			}
			return setting.Block(d, setting.Lines{
				"username": setting.Text(&r.Sentinel.Username),
				"password": setting.Secret(&r.Sentinel.Password),
			})
		},
	}, r.checkCaddyfile)
}

// checkCaddyfile checks the settings, unless one has placeholders, which are replaced later.
func (r *Redis) checkCaddyfile() error {
	for _, text := range r.texts() {
		if strings.Contains(*text.value, "{") {
			return nil
		}
	}
	_, err := r.options()
	return err
}

// Address implements mcpstore.Addressed.
func (r *Redis) Address() string {
	u, err := url.Parse(r.URL)
	if err != nil { // Provision rejects it
		return ""
	}
	u.User = nil
	return strings.Join(append([]string{u.String()}, r.Addresses...), " ")
}

// Files implements mcpstore.FileReader.
func (r *Redis) Files() (names []string) {
	if r.TLS == nil {
		return nil
	}
	for _, name := range []string{r.TLS.CA, r.TLS.Certificate, r.TLS.Key} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Redis)(nil)
	_ caddyfile.Unmarshaler = (*Redis)(nil)
	_ mcpstore.Opener       = (*Redis)(nil)
	_ mcpstore.Addressed    = (*Redis)(nil)
	_ mcpstore.FileReader   = (*Redis)(nil)
)
