// Command clock is Caddy with every module of this project, built with a time.Now that has an
// adjustable offset: see the test that builds it.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules"
)

func main() {
	clock, err := net.Listen("unix", os.Getenv("WALL_CLOCK"))
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			conn, err := clock.Accept()
			if err != nil {
				log.Fatal(err)
			}
			_, err = fmt.Fscanln(conn, &time.WallOffset) // seconds
			_, _ = fmt.Fprintln(conn, time.Now().Unix(), err)
			conn.Close()
		}
	}()
	caddycmd.Main()
}
