package mcpgateway

import "testing"

// Writing out a default does not change the id of a server, so its sessions survive the reload.
func TestServerIDWithDefaults(t *testing.T) {
	id := func(more string) string {
		return adaptGateway(t, `{`+more+`"servers":[`+serverOf("a", staticHandler)+`]}`).Servers[0].id
	}
	want := id("")
	for _, more := range []string{`"separator":"::",`, `"max_name_length":64,`, `"mcp_path":"/mcp",`} {
		if got := id(more); got != want {
			t.Errorf("%s changes the id", more)
		}
	}
	if id(`"separator":"__",`) == want {
		t.Error("another separator does not change the id")
	}
}

// The id of a server changes with forward_auth_header, because its responses may change.
func TestServerIDWithForwardedCredentials(t *testing.T) {
	server := &Server{Name: "a"}
	if serverID(&Handler{}, server) == serverID(&Handler{ForwardAuthHeader: true}, server) {
		t.Error("forward_auth_header does not change the id of a server")
	}
}
