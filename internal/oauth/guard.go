package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

const (
	requestTime  = 10 * time.Second // for a request and its response
	maxBody      = 256 << 10
	maxRedirects = 3
)

// A guard sends requests to URLs that come from servers. It refuses URLs that are not https, and
// addresses that are not public, unless the host is trusted. It checks addresses when it dials, so
// it also refuses names that resolve to private addresses, and redirects to them.
type guard struct {
	resource string // trusted origin
	hosts    []string
	trusted  *http.Transport
	public   *http.Transport
	client   *http.Client
}

func newGuard(resource *url.URL, hosts []string) *guard {
	g := &guard{resource: origin(resource)}
	for _, host := range hosts {
		g.hosts = append(g.hosts, strings.ToLower(host))
	}
	// Requests are rare. Without idle connections there is nothing to close.
	g.trusted = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: requestTime,
	}
	g.public = &http.Transport{DialContext: dialPublic, DisableKeepAlives: true, TLSHandshakeTimeout: requestTime}
	g.client = &http.Client{Transport: g, Timeout: requestTime, CheckRedirect: checkRedirect}
	return g
}

// A refusal is the error for a URL that must not be used.
type refusal struct{ host, rule string }

func (r *refusal) Error() string {
	return fmt.Sprintf("%s: %s; add the host to trusted_hosts to allow it", printable(r.host), r.rule)
}

// trusts reports whether a URL may use plain http and any address.
func (g *guard) trusts(u *url.URL) bool {
	if origin(u) == g.resource {
		return true
	}
	return slices.ContainsFunc(g.hosts, func(pattern string) bool {
		return mcp.MatchName(strings.Trim(pattern, "[]"), strings.ToLower(u.Hostname())) ||
			mcp.MatchName(pattern, strings.ToLower(u.Host))
	})
}

// parse parses a URL that comes from a server, and returns why it must not be used.
func (g *guard) parse(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URL", printable(raw))
	}
	return u, g.check(u)
}

func (g *guard) check(u *url.URL) error {
	switch {
	case u.Scheme != "https" && u.Scheme != "http", u.Opaque != "", u.Hostname() == "":
		return fmt.Errorf("%q is not an https URL", printable(u.Redacted()))
	case u.User != nil:
		return fmt.Errorf("%q contains a user name", printable(u.Redacted()))
	case u.Fragment != "" || u.RawFragment != "":
		return fmt.Errorf("%q has a fragment", printable(u.Redacted()))
	case g.trusts(u):
		return nil
	case u.Scheme != "https":
		return &refusal{u.Host, "plain http is refused"}
	}
	if address, err := netip.ParseAddr(u.Hostname()); err == nil && !isPublic(address) {
		return &refusal{u.Host, "its address is not public"}
	}
	return nil
}

// RoundTrip checks every request of the client, including redirects.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := g.check(r.URL); err != nil {
		return nil, err
	}
	transport := g.public
	if g.trusts(r.URL) {
		transport = g.trusted
	}
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = http.MaxBytesReader(nil, response.Body, maxBody)
	if r.Method == http.MethodPost {
		response.Header.Set("Content-Type", "application/json") // x/oauth2 would read other types as a form
	}
	return response, nil
}

func checkRedirect(_ *http.Request, via []*http.Request) error {
	if via[0].Method != http.MethodGet {
		return errors.New("redirects of this request are refused")
	}
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	return nil
}

// dialPublic dials only public addresses.
func dialPublic(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	dialer := net.Dialer{Timeout: requestTime, Control: func(_, resolved string, _ syscall.RawConn) error {
		if to, err := netip.ParseAddrPort(resolved); err != nil || !isPublic(to.Addr()) {
			return &refusal{host, "its address is not public"}
		}
		return nil
	}}
	return dialer.DialContext(ctx, network, address)
}

// notPublic are the parts of the unicast address space that are not public, or that map to other
// addresses.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("3fff::/20"),
}

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour     = netip.MustParsePrefix("2002::/16")
)

// isPublic reports whether an address is on the public internet.
func isPublic(address netip.Addr) bool {
	address = address.Unmap()
	if address.Is6() {
		bytes := address.As16()
		switch {
		case nat64.Contains(address):
			return isPublic(netip.AddrFrom4([4]byte(bytes[12:])))
		case sixToFour.Contains(address):
			return isPublic(netip.AddrFrom4([4]byte(bytes[2:6])))
		case !globalUnicast.Contains(address):
			return false
		}
	}
	for _, prefix := range notPublic {
		if prefix.Contains(address) {
			return false
		}
	}
	return address.Zone() == "" && address.IsGlobalUnicast() && !address.IsPrivate()
}

// get fetches a JSON document. A web page counts as not found.
func (g *guard) get(ctx context.Context, address string, into any) (found bool, err error) {
	u, err := g.parse(address)
	if err != nil {
		return false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, err
	}
	return g.send(request, into)
}

// send sends a request and decodes the JSON of the response.
func (g *guard) send(request *http.Request, into any) (found bool, err error) {
	response, err := g.client.Do(request)
	if err != nil {
		return false, hideURL(request.URL.Host, err)
	}
	defer func() { _ = response.Body.Close() }()
	switch {
	case response.StatusCode >= 400 && response.StatusCode < 500 && !isBusy(response.StatusCode):
		_ = json.NewDecoder(response.Body).Decode(into) // may be an OAuth error
		return false, nil
	case response.StatusCode < 200 || response.StatusCode > 299:
		return false, fmt.Errorf("%s: status %d", request.URL.Host, response.StatusCode)
	}
	if content, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); content == "text/html" {
		return false, nil
	}
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return false, fmt.Errorf("%s: %w", request.URL.Host, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return false, fmt.Errorf("%s: the response is not the expected JSON", request.URL.Host)
	}
	return true, nil
}

// isBusy reports whether a 4xx status says that a later request may succeed.
func isBusy(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusTooEarly || status == http.StatusTooManyRequests
}

// hideURL replaces the URL in an error of the client by the host, because a redirect may have put
// secrets into the URL.
func hideURL(host string, err error) error {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return refused
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	return fmt.Errorf("%s: %w", host, err)
}

// origin returns the scheme, host and port of a URL.
func origin(u *url.URL) string {
	scheme, port := strings.ToLower(u.Scheme), u.Port()
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" && !(scheme == "https" && port == "443") && !(scheme == "http" && port == "80") {
		host += ":" + port
	}
	return scheme + "://" + host
}
