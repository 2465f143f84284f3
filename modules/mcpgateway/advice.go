package mcpgateway

import (
	"maps"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

const (
	writeCommand = `write "server <name> stdio <command> <args...>"`
	writeURL     = `write "server <name> <url>"`
	writeHeader  = `write "request_header <name> <value>"`
	writeExpose  = `write "expose <patterns...>"`
	leaveOut     = `remove it: the URL, or stdio and a command, after the server name is enough`
	comment      = `to disable a server, comment out its lines with #`
	inClient     = `it belongs in "client <name> { }"`
	inServer     = `it belongs in "server <name> { }"`
	inGateway    = `it belongs in "mcp_gateway { }"`
	needsStdio   = `only servers with stdio have it`
	sendToken    = `to send a token to the server, write request_header Authorization "Bearer {env.TOKEN}"; ` +
		`client tokens belong in "client <name> { }"`
)

// foreignAdvice is advice on words from configurations of other programs, such as mcp.json.
var foreignAdvice = setting.Advice{
	"command": writeCommand, "args": writeCommand, "cmd": writeCommand,
	"url": writeURL, "serverUrl": writeURL, "httpUrl": writeURL,
	"headers": writeHeader, "header_up": writeHeader, "bearer": writeHeader, "authorization": writeHeader,
	"Authorization": writeHeader,
	"type":          leaveOut, "transport": leaveOut, "transportType": leaveOut,
	"disabled": comment, "enabled": comment,
	"cwd":   `write "dir <directory>"`,
	"tools": writeExpose, "alwaysAllow": writeExpose, "autoApprove": writeExpose, "includeTools": writeExpose,
	"allowedTools": writeExpose, "enabled_tools": writeExpose,
	"mcpServers": writeURL + ` or "server <name> stdio <command> <args...>"`,
	"servers":    writeURL + ` or "server <name> stdio <command> <args...>"`,
}

// commonHandlers are the Caddy directives to suggest in a server block.
var commonHandlers = []string{
	"reverse_proxy", "request_header", "request_body", "forward_auth", "respond", "rewrite", "handle", "route", "vars",
}

// serverWords returns the subdirectives of a server.
func serverWords(stdio bool) []string {
	words := new(Server).lines().Words()
	if stdio {
		words = slices.AppendSeq(words, maps.Keys(transportOptions))
	}
	return words
}

// clientWords returns the subdirectives of a client.
func clientWords() []string {
	return new(Client).lines(new(Handler), new(providers), new(checks)).Words()
}

// gatewayWords returns the subdirectives of a gateway.
func gatewayWords() []string {
	return append(gatewayLines(new(Handler), new(providers), new(checks)).Words(), "server")
}

// adviceInGateway returns advice on words that are unknown in a gateway block.
func adviceInGateway() setting.Advice {
	advice := maps.Clone(foreignAdvice)
	advise(advice, inServer, serverWords(true))
	advise(advice, inClient, clientWords())
	return advice
}

// adviceInClient returns advice on words that are unknown in a client block.
func adviceInClient() setting.Advice {
	advice := setting.Advice{}
	advise(advice, inGateway, gatewayWords())
	advise(advice, inServer, serverWords(true))
	advice["auth"] = `write "token <token>", or auth in "mcp_gateway { }"`
	return advice
}

// adviceInServer returns advice on words that are unknown in a server block.
func adviceInServer(stdio bool) setting.Advice {
	advice := setting.Advice{}
	advise(advice, inGateway, gatewayWords())
	advise(advice, inClient, clientWords())
	if !stdio {
		advise(advice, needsStdio, slices.Collect(maps.Keys(transportOptions)))
	}
	maps.Copy(advice, foreignAdvice)
	for _, word := range []string{"token", "auth", "api_key", "apiKey"} {
		advice[word] = sendToken
	}
	if stdio {
		for _, word := range []string{"token", "api_key", "apiKey", "headers", "header_up"} {
			advice[word] = `write "env <name> <value>"`
		}
	}
	return advice
}

// advise sets the advice on words that have none.
func advise(advice setting.Advice, text string, words []string) {
	for _, word := range words {
		if advice[word] == "" {
			advice[word] = text
		}
	}
}
