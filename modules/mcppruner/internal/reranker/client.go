package reranker

import (
	"context"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/rerank"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
)

// A Client asks the reranker, for backends that embed it.
type Client struct {
	client *rerank.Client
}

// Open makes the client ready. The error is of a configuration with which nothing can
// be asked, as Score will say.
func (c *Client) Open(config rerank.Config) error {
	c.client = rerank.New(config)
	return c.client.Err()
}

// Score asks the reranker.
func (c *Client) Score(ctx context.Context, goal string, lines []string) (*mcppruner.Scored, *mcppruner.Fault) {
	scored, fault := c.client.Score(ctx, goal, lines)
	return (*mcppruner.Scored)(scored), (*mcppruner.Fault)(fault)
}

// Cleanup closes connections.
func (c *Client) Cleanup() error {
	if c.client != nil {
		c.client.Close()
	}
	return nil
}
