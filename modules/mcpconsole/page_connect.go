package mcpconsole

import (
	_ "embed"
	"net/url"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var connectPage = page{
	pattern: "/connect", name: "connect", title: "Connect",
	show: func(v *visit) (any, error) {
		overview, err := get[adminapi.Overview](v, "/overview")
		if err != nil {
			return nil, err
		}
		return newConnectView(overview.Gateways, v.r.URL.Query().Get("address")), nil
	},
}

// A connectView tells how clients are connected to a gateway.
type connectView struct {
	Addresses []gatewayAddress // of all gateways
	Chosen    *gatewayAddress  // nil if there is none
	Clients   []clientSettings // with the chosen one
}

// A gatewayAddress is an address at which clients reach a gateway.
type gatewayAddress struct {
	adminapi.GatewayStatus
	URL string
}

// newConnectView returns the settings for the address that was asked for, or else for the first one.
func newConnectView(gateways []adminapi.GatewayStatus, asked string) *connectView {
	view := new(connectView)
	for _, g := range gateways {
		for _, address := range g.URLs {
			if u, err := url.Parse(address); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
				view.Addresses = append(view.Addresses, gatewayAddress{g, u.String()})
			}
		}
	}
	for i, address := range view.Addresses {
		if i == 0 || address.URL == asked {
			view.Chosen = &view.Addresses[i]
		}
	}
	if view.Chosen != nil {
		view.Clients = settingsOf(view.Chosen.URL, view.Chosen.Auth)
	}
	return view
}

// clientsFile has the settings of each client, as docs/clients.md has them: with and without a token, for its address.
//
//go:embed clients.md
var clientsFile string

// documentedURL is the address in the documentation.
const documentedURL = "http://127.0.0.1:8080/mcp"

// clientSettings are what a client has to be told.
type clientSettings struct {
	Name string
	ID   string // of its section
	Text string // where to put it
	Code string
}

// settingsOf returns the settings of all clients for an address.
func settingsOf(address string, token bool) (all []clientSettings) {
	for section := range strings.SplitSeq(clientsFile, "\n## ") {
		section, withToken, _ := strings.Cut(section, "\n### With a token\n")
		name, body, _ := strings.Cut(strings.TrimPrefix(section, "## "), "\n")
		settings := clientSettings{Name: name, ID: strings.ReplaceAll(strings.ToLower(name), " ", "-")}
		settings.Text, settings.Code = textAndCode(body)
		if token && withToken != "" {
			text, code := textAndCode(withToken)
			if text != "" {
				settings.Text = text
			}
			settings.Code = code
		}
		settings.Code = strings.ReplaceAll(settings.Code, documentedURL, address)
		all = append(all, settings)
	}
	return all
}

// textAndCode returns the text of a section and the code in its fence.
func textAndCode(section string) (text, code string) {
	text, fence, _ := strings.Cut(section, "```")
	_, code, _ = strings.Cut(fence, "\n") // behind the name of its language
	code, _, _ = strings.Cut(code, "\n```")
	return strings.TrimSpace(text), code
}
