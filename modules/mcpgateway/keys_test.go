package mcpgateway

import "testing"

// A server keeps its ID if a default is written out, so a reload that only does that keeps its
// sessions.
func TestDefaultsAreTheSameServer(t *testing.T) {
	id := func(more string) string {
		return adaptGateway(t, `{`+more+`"servers":[`+serverOf("a", staticHandler)+`]}`).Servers[0].id
	}
	want := id("")
	for _, more := range []string{`"separator":"::",`, `"max_name_length":64,`, `"mcp_path":"/mcp",`} {
		if got := id(more); got != want {
			t.Errorf("%s makes it another server", more)
		}
	}
	if id(`"separator":"__",`) == want {
		t.Error("another separator makes it the same server")
	}
}

// The ID of a server changes if it gets the credentials of clients, because its responses may
// change.
func TestServersThatGetCredentialsAreOthers(t *testing.T) {
	server := &Server{Name: "a"}
	if serverID(&Handler{}, server) == serverID(&Handler{ForwardAuthHeader: true}, server) {
		t.Error("forward_auth_header does not change the id of a server")
	}
}
