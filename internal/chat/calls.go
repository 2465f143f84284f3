package chat

import "strconv"

// A call is the model's request to run a tool.
type call struct {
	id   int32 // a symbol
	tool int32 // a symbol, or noSymbol
}

const noSymbol = -1

// A waiting call has no id: results that have none, or one that no call has, answer
// such calls in their order.
type waiting struct {
	id       int32 // a symbol, made of the name of its tool and a number
	next     int32 // the next one of the same tool
	answered bool
}

// A queue has the calls of a tool that wait.
type queue struct {
	round       int32 // the one that first and last are of
	first, last int32
	made        int32 // how many calls of this tool had no id so far
}

const noCall = -1

// maxName is how many bytes the name of a tool may have, in UTF-8. Providers allow 64
// to 128; a longer one, repeated in the place of each result, is not a placeholder.
const maxName = 256

// maxEscape is how many bytes a byte of a string takes at most in JSON: \u0001.
const maxEscape = 6

// call makes a call, which may have no id, and whose tool may have no name.
func (c *Conversation) call(id, name value) call {
	made := call{noSymbol, c.tool(name)}
	if id.isText() {
		made.id = c.ids.number(c.decode(id), id)
	}
	return made
}

// tool returns the symbol of a tool of this name, or noSymbol.
func (c *Conversation) tool(name value) int32 {
	if !name.isText() || len(c.text(name)) > maxEscape*maxName {
		return noSymbol
	}
	text := c.decode(name)
	if len(text) > maxName {
		return noSymbol
	}
	return c.names.number(text, name)
}

// take takes a call, and numbers it among those of its tool if it has no id.
func (c *Conversation) take(call call) {
	if call.id == noSymbol {
		for int(call.tool) >= len(c.queues) {
			c.queues = append(c.queues, queue{})
		}
		q := &c.queues[call.tool]
		q.made++
		start := len(c.decoded)
		c.decoded = append(append(c.decoded, c.names.texts[call.tool]...), '#')
		c.decoded = strconv.AppendInt(c.decoded, int64(q.made), 10)
		call.id = c.ids.number(c.decoded[start:len(c.decoded):len(c.decoded)], value{})
		c.list.made = true
		i := int32(len(c.waiting))
		if q.round == c.list.round {
			c.waiting[q.last].next = i
		} else {
			q.round, q.first = c.list.round, i
		}
		q.last = i
		c.waiting = append(c.waiting, waiting{id: call.id, next: noCall})
	}
	c.noteCalled(call.id)
	c.calls = append(c.calls, call)
}

// noteCalled notes that a call has an id.
func (c *Conversation) noteCalled(id int32) {
	for int(id) >= len(c.called) {
		c.called = append(c.called, false)
	}
	c.called[id] = true
}

// answer takes a result, and finds its call: the one that has its id, or the first one
// without an id, of the tool it names if it names one.
func (c *Conversation) answer(r *result, tool value) {
	if r.id.isText() {
		r.symbol = c.ids.number(c.decode(r.id), r.id)
	}
	if len(c.waiting) > 0 && (r.symbol == noSymbol || int(r.symbol) >= len(c.called) || !c.called[r.symbol]) {
		if w := c.next(tool); w != nil {
			w.answered = true
			r.id, r.symbol = value{}, w.id
		}
	}
	c.results = append(c.results, *r)
}

// next returns the first call that waits for a result of this tool, or of any if it has
// no name, or nil.
func (c *Conversation) next(tool value) *waiting {
	first := &c.list.oldest
	if tool.isText() {
		name := c.tool(tool)
		if name == noSymbol || int(name) >= len(c.queues) || c.queues[name].round != c.list.round {
			return nil
		}
		first = &c.queues[name].first
	}
	for int(*first) < len(c.waiting) {
		w := &c.waiting[*first]
		if !w.answered {
			return w
		}
		if !tool.isText() {
			*first++
		} else if w.next == noCall {
			return nil
		} else {
			*first = w.next
		}
	}
	return nil
}
