package chat

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

// builtin are the names of tools whose calls have their own kinds of items.
var builtin = [...][]byte{
	localShellCall: []byte("local_shell"),
	shellCall:      []byte("shell"),
	applyPatchCall: []byte("apply_patch"),
	computerCall:   []byte("computer"),
	toolSearchCall: []byte("tool_search"),
}

func (c *Conversation) endItem(v value) {
	m := &c.message
	c.list.format = functionCall
	if v.kind != jsonspan.BeginObject {
		c.list.invalid = true
	}
	if !m.id.isText() && (m.kind == localShellCall || m.kind == localShellCallOutput) {
		m.id = m.itemID
	}
	switch m.kind {
	case functionCall, localShellCall, shellCall, applyPatchCall, computerCall, toolSearchCall:
		if !c.list.open && m.id.isText() {
			c.beginTurn(v)
			c.list.open = true
		}
		c.list.modelSpoke = !c.list.open
		if m.id.isText() {
			call := c.newCall(m.id, m.name)
			if name := builtin[m.kind]; !m.name.isText() && name != nil {
				call.tool = c.names.number(name, value{})
				c.list.hasGenerated = true
			}
			c.calls = append(c.calls, call)
			c.endTurn(v)
		}
	case functionCallOutput, localShellCallOutput, shellCallOutput:
		c.list.open = false
		c.endOutput()
		c.endTurn(v)
	case otherOutput:
		c.list.open = false
		c.results = append(c.results, result{symbol: noSymbol, texts: m.texts, unread: UnknownKind})
	default:
		if m.role == assistant {
			c.list.modelSpoke = true
		} else if m.role != noWord {
			c.list.open = false
		}
	}
	c.list.setLast(v, m.role == assistant || m.role == noWord && !m.kind.isOutput())
	c.nextMessage()
}

// endOutput adds the result of an item.
func (c *Conversation) endOutput() {
	m, b := &c.message, &c.block
	content, failed := b.content, m.failed
	if content.kind == jsonspan.BeginObject && b.text.kind == jsonspan.String {
		content, failed = b.text, failed || b.failed
	}
	if m.kind == shellCallOutput {
		b.notText, failed = b.notShell, failed || b.shellFailed
	}
	r := c.newResult(m.id, content, failed, jsonspan.BeginArray)
	c.addAnswer(&r, value{})
}
