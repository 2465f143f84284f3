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
	leaveOut     = `leave it out: a URL, or stdio and a command, after the name of the server says it`
	comment      = `to turn a server off, put # in front of its lines`
	inClient     = `it belongs in "client <name> { }"`
	inServer     = `it belongs in "server <name> { }"`
	inGateway    = `it belongs in "mcp_gateway { }"`
	needsStdio   = `it is for servers with stdio`
	sendToken    = `to send a token to the server, write request_header Authorization "Bearer {env.TOKEN}"; ` +
		`those of clients belong in "client <name> { }"`
)

// foreign are words of other programs' configurations, such as mcp.json.
var foreign = setting.Advice{
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

// commonHandlers are directives of Caddy that servers have, for suggestions.
var commonHandlers = []string{
	"reverse_proxy", "request_header", "request_body", "forward_auth", "respond", "rewrite", "handle", "route", "vars",
}

// wordsOfServer returns the subdirectives of a server.
func wordsOfServer(stdio bool) []string {
	words := new(Server).lines().Words()
	if stdio {
		words = slices.AppendSeq(words, maps.Keys(ofTransport))
	}
	return words
}

// wordsOfClient returns the subdirectives of a client.
func wordsOfClient() []string {
	return new(Client).lines(new(Handler), new(providers), new(checks)).Words()
}

// wordsOfGateway returns the subdirectives of a gateway.
func wordsOfGateway() []string {
	return append(gatewayLines(new(Handler), new(providers), new(checks)).Words(), "server")
}

// adviceInGateway returns what to write in place of words that a gateway does not have.
func adviceInGateway() setting.Advice {
	advice := maps.Clone(foreign)
	advise(advice, inServer, wordsOfServer(true))
	advise(advice, inClient, wordsOfClient())
	return advice
}

// adviceInClient returns what to write in place of words that a client does not have.
func adviceInClient() setting.Advice {
	advice := setting.Advice{}
	advise(advice, inGateway, wordsOfGateway())
	advise(advice, inServer, wordsOfServer(true))
	advice["auth"] = `write "token <token>", or auth in "mcp_gateway { }"`
	return advice
}

// adviceInServer returns what to write in place of words that a server does not have.
func adviceInServer(stdio bool) setting.Advice {
	advice := setting.Advice{}
	advise(advice, inGateway, wordsOfGateway())
	advise(advice, inClient, wordsOfClient())
	if !stdio {
		advise(advice, needsStdio, slices.Collect(maps.Keys(ofTransport)))
	}
	maps.Copy(advice, foreign)
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

// advise gives words without advice some.
func advise(advice setting.Advice, text string, words []string) {
	for _, word := range words {
		if advice[word] == "" {
			advice[word] = text
		}
	}
}
