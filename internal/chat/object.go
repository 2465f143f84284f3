package chat

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

var anyMember = jsonspan.CompilePaths("*")

// valueLooksLikeError reports whether a text looks like an error. An object or list that
// stands in the place of one does if it says so, or a string in it does.
func (c *Conversation) valueLooksLikeError(t value) bool {
	if t.kind == jsonspan.String {
		return c.textLooksLikeError(t)
	}
	object := c.body[t.start:t.end]
	looks := saysError(object)
	_ = anyMember.Find(object, func(_ int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && !looks {
			start, end := t.start+int32(v.Start), t.start+int32(v.End)
			looks = c.textLooksLikeError(value{start, end, int32(v.Chars), v.Kind, v.Numbered})
		}
	})
	return looks
}
