package mcppruner

import (
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

const (
	serverName = "mcp-pruner"

	// serverVersion is that of what its tools take and give, which clients know it by.
	// It is not the version of the binary.
	serverVersion = "0.1.0"
)

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type capabilities struct {
	Tools struct{} `json:"tools"`
}

// signature is the members that make a result one of the modern era.
var signature = slices.Concat([]byte(`"resultType":"complete","_meta":{"`+mcp.MetaServerInfo+`":`),
	jsonrpc.Encode(serverInfo{serverName, serverVersion}), []byte("}"))

const instructions = "Call prune_text before long code, logs or docs go into the conversation: it leaves out the lines that bear least on the goal you name. " +
	"Where lines are missing stands a marker such as ⟦PRUNÉ: prune_id=prn_… lignes 120-154 (35) raison=…⟧; call recover_text with that prune_id and those lines to read them."

// initialize shakes hands with a client of the legacy era. There is no session: each
// request could be the first.
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

// caching says how long clients of the modern era may keep what never changes.
type caching struct {
	TTL   int    `json:"ttlMs"`
	Scope string `json:"cacheScope"`
}

var forAll = caching{TTL: int(time.Hour / time.Millisecond), Scope: "public"}

// discover tells clients of the modern era who we are.
func (x *request) discover() []byte {
	versions := mcp.Versions()
	slices.Reverse(versions)
	return jsonrpc.Encode(struct {
		SupportedVersions []string     `json:"supportedVersions"`
		Capabilities      capabilities `json:"capabilities"`
		Instructions      string       `json:"instructions"`
		caching
	}{SupportedVersions: versions, Instructions: instructions, caching: forAll})
}

// list returns the result of a list: items are JSON, and all there are.
func (x *request) list(kind string, items []byte) []byte {
	result := slices.Concat([]byte(`{"`+kind+`":[`), items, []byte(`]`))
	if x.era == mcp.Modern {
		result = append(append(result, ','), jsonrpc.Encode(forAll)[1:]...)
		return result
	}
	return append(result, '}')
}

// health is what there is to say of a server that is up.
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
