package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// A directServer is a child that the test talks to without a gateway.
type directServer struct {
	in  io.WriteCloser
	out *bufio.Reader
	ids int
}

// startDirect starts a server. It does not wait, so that several can start at once.
func startDirect(t *testing.T, cmd *exec.Cmd) *directServer {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return &directServer{in: in, out: bufio.NewReader(out)}
}

// initialize makes a handshake with these client capabilities.
func (s *directServer) initialize(t *testing.T, capabilities string) {
	t.Helper()
	s.ask(t, "initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"test",`+
		`"version":"1"}}`,
		mcpclient.Legacy, capabilities))
	fmt.Fprintln(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// ask returns the result of a request.
func (s *directServer) ask(t *testing.T, method, params string) json.RawMessage {
	t.Helper()
	s.ids++
	fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", s.ids, method, params)
	for {
		line, err := s.out.ReadBytes('\n')
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		var m struct{ ID, Result, Error json.RawMessage }
		if json.Unmarshal(line, &m) == nil && string(m.ID) == fmt.Sprint(s.ids) {
			if m.Result == nil {
				t.Fatalf("%s: %s", method, m.Error)
			}
			return m.Result
		}
	}
}
