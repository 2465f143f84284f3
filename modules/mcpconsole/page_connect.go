package mcpconsole

import (
	"cmp"
	_ "embed"
	"net/url"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var connectPage = page{
	pattern: "/connect", name: "connect", title: "Connect",
	show: func(v *consoleRequest) (any, error) {
		overview, err := get[adminapi.Overview](v, "/overview")
		if err != nil {
			return nil, err
		}
		return newConnectView(overview.Gateways, v.r.URL.Query().Get("address")), nil
	},
}

// A connectView shows how to connect clients to a gateway.
type connectView struct {
	Addresses []gatewayAddress // of all gateways
	Chosen    *gatewayAddress  // nil if there are no addresses
	Clients   []clientSettings // for the chosen address
}

// A gatewayAddress is a URL of a gateway for clients.
type gatewayAddress struct {
	adminapi.GatewayStatus
	URL string
}

// newConnectView returns the settings for the requested address, or for the first one if it is
// unknown.
func newConnectView(gateways []adminapi.GatewayStatus, requested string) *connectView {
	view := new(connectView)
	for _, g := range gateways {
		for _, address := range g.URLs {
			if u, err := url.Parse(address); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
				view.Addresses = append(view.Addresses, gatewayAddress{g, u.String()})
			}
		}
	}
	for i, address := range view.Addresses {
		if i == 0 || address.URL == requested {
			view.Chosen = &view.Addresses[i]
		}
	}
	if view.Chosen != nil {
		view.Clients = settingsOf(view.Chosen.URL, view.Chosen.Auth)
	}
	return view
}

// clientsFile contains the settings of each client for documentedURL, with and without a token, as
// docs/clients.md has them.
//
//go:embed clients.md
var clientsFile string

// documentedURL is the gateway's URL in clientsFile.
const documentedURL = "http://127.0.0.1:8080/mcp"

// clientSettings are the settings of a client.
type clientSettings struct {
	Name string
	ID   string // id of its section
	Text string // instructions
	Code string
}

// settingsOf returns the settings of all clients for an address, with a token if it needs one.
func settingsOf(address string, token bool) (all []clientSettings) {
	for section := range strings.SplitSeq(clientsFile, "\n## ") {
		section, withToken, _ := strings.Cut(section, "\n### With a token\n")
		name, body, _ := strings.Cut(strings.TrimPrefix(section, "## "), "\n")
		settings := clientSettings{Name: name, ID: strings.ReplaceAll(strings.ToLower(name), " ", "-")}
		settings.Text, settings.Code = textAndCode(body)
		if token && withToken != "" {
			var text string
			text, settings.Code = textAndCode(withToken)
			settings.Text = cmp.Or(text, settings.Text)
		}
		settings.Code = strings.ReplaceAll(settings.Code, documentedURL, address)
		all = append(all, settings)
	}
	return all
}

// textAndCode returns the text of a section and the code in its fence.
func textAndCode(section string) (text, code string) {
	text, fence, _ := strings.Cut(section, "```")
	_, code, _ = strings.Cut(fence, "\n") // after the language
	code, _, _ = strings.Cut(code, "\n```")
	return strings.TrimSpace(text), code
}
