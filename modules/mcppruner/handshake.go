package mcppruner

import (
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

const (
	serverName = "mcp-pruner"

	// serverVersion is the version of the tools' inputs and outputs, not of the binary.
	serverVersion = "0.1.0"
)

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type capabilities struct {
	Tools struct{} `json:"tools"`
}

// modernMembers holds the members that every result of the modern era has.
var modernMembers = slices.Concat([]byte(`"resultType":"complete","_meta":{"`+mcp.MetaServerInfo+`":`),
	jsonrpc.Encode(serverInfo{serverName, serverVersion}), []byte("}"))

const instructions = "Call prune_text before long code, logs or docs go into the conversation: " +
	"it leaves out the lines that are least relevant to the goal you name. " +
	"A marker such as ⟦PRUNÉ: prune_id=prn_… lignes 120-154 (35) raison=…⟧ replaces the lines that are left out; " +
	"call recover_text with that prune_id and those lines to read them."

// initialize returns the result of initialize, for clients of the legacy era. There are no
// sessions: any request may be the first.
func (x *request) initialize() []byte {
	return jsonrpc.Encode(struct {
		ProtocolVersion string       `json:"protocolVersion"`
		Capabilities    capabilities `json:"capabilities"`
		ServerInfo      serverInfo   `json:"serverInfo"`
		Instructions    string       `json:"instructions"`
	}{
		ProtocolVersion: mcp.Negotiate(x.message.Text(jsonrpc.Requested), mcp.Latest),
		ServerInfo:      serverInfo{serverName, serverVersion},
		Instructions:    instructions,
	})
}

// caching tells clients of the modern era how long they may cache a result.
type caching struct {
	TTL   int    `json:"ttlMs"`
	Scope string `json:"cacheScope"`
}

var publicCaching = caching{TTL: int(time.Hour / time.Millisecond), Scope: "public"}

// discover returns the result of server/discover, for clients of the modern era.
func (x *request) discover() []byte {
	versions := mcp.Versions()
	slices.Reverse(versions)
	return jsonrpc.Encode(struct {
		SupportedVersions []string     `json:"supportedVersions"`
		Capabilities      capabilities `json:"capabilities"`
		Instructions      string       `json:"instructions"`
		caching
	}{SupportedVersions: versions, Instructions: instructions, caching: publicCaching})
}

// list returns the result of a list method. items is JSON, and there is only one page.
func (x *request) list(kind string, items []byte) []byte {
	result := slices.Concat([]byte(`{"`+kind+`":[`), items, []byte(`]`))
	if x.era == mcp.Modern {
		result = append(append(result, ','), jsonrpc.Encode(publicCaching)[1:]...)
		return result
	}
	return append(result, '}')
}

// health is the result of the tool health.
type health struct {
	Status       string    `json:"status"`
	Server       string    `json:"server"`
	Version      string    `json:"version"`
	Capabilities []string  `json:"capabilities"`
	Timestamp    time.Time `json:"timestamp"`
	Backend      string    `json:"backend"`
}

func (h *Handler) health() health {
	return health{
		Status:       "healthy",
		Server:       serverName,
		Version:      serverVersion,
		Capabilities: []string{"prune_text", "recover_text", "annotations", "markers"},
		Timestamp:    time.Now().Truncate(time.Second),
		Backend:      h.backend.Name(),
	}
}
