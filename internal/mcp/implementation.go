package mcp

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An Implementation identifies a server to its clients, or a client to servers.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// AddMembers adds the members that the modern era requires to a result of the server.
func (i Implementation) AddMembers(resultType string, result []byte) []byte {
	for member := range jsonspan.Members(result) {
		if at := member.Value; member.Key == "_meta" && at.Kind == jsonspan.BeginObject {
			return jsonspan.Spliced(result, jsonspan.Insert(result, typeMember(resultType)),
				jsonspan.Insert(result[at.Start:at.End], i.metaMember()).Moved(at.Start))
		}
	}
	return jsonspan.Spliced(result, jsonspan.Insert(result, i.Members(resultType)))
}

// Members returns the members of a modern result: its type and its sender.
func (i Implementation) Members(resultType string) []byte {
	return slices.Concat(typeMember(resultType), []byte(`,"_meta":{`), i.metaMember(), []byte("}"))
}

// metaMember returns the member of _meta that names the sender.
func (i Implementation) metaMember() []byte {
	return slices.Concat([]byte(`"`+MetaServerInfo+`":`), jsonrpc.Encode(i))
}

func typeMember(resultType string) []byte { return []byte(`"resultType":"` + resultType + `"`) }
