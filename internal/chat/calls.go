package chat

import "strconv"

// A call is the model's request to run a tool.
type call struct {
	id   int32 // a symbol
	tool int32 // a symbol, or noSymbol
}

const noSymbol = -1

// A waitingCall call has no id. Results without an id, or with an id that no call has, answer such
// calls in order.
type waitingCall struct {
	id       int32 // symbol, generated from the name of its tool and a number
	next     int32 // next one of the same tool
	answered bool
}

// A queue holds the waiting calls of a tool.
type queue struct {
	round       int32 // round that first and last belong to
	first, last int32
	generated   int32 // number of calls of this tool without an id so far
}

const noCall = -1

// maxName is the longest tool name in bytes. Providers allow 64 to 128; a longer one would make
// placeholders longer than results.
const maxName = 256

// maxEscape is the largest JSON encoding of a byte, as in \u0001.
const maxEscape = 6

// newCall returns a call, which may have no id, and whose tool may have no name.
func (c *Conversation) newCall(id, name value) call {
	made := call{noSymbol, c.toolSymbol(name)}
	if id.isText() {
		made.id = c.ids.number(c.decode(id), id)
	}
	return made
}

// toolSymbol returns the symbol of a tool name, or noSymbol.
func (c *Conversation) toolSymbol(name value) int32 {
	if !name.isText() || len(c.text(name)) > maxEscape*maxName {
		return noSymbol
	}
	text := c.decode(name)
	if len(text) > maxName {
		return noSymbol
	}
	return c.names.number(text, name)
}

// addTurnCall adds a call. A call without an id gets one from its tool and a number.
func (c *Conversation) addTurnCall(call call) {
	if call.id == noSymbol {
		for int(call.tool) >= len(c.queues) {
			c.queues = append(c.queues, queue{})
		}
		q := &c.queues[call.tool]
		q.generated++
		start := len(c.decoded)
		c.decoded = append(append(c.decoded, c.names.texts[call.tool]...), '#')
		c.decoded = strconv.AppendInt(c.decoded, int64(q.generated), 10)
		call.id = c.ids.number(c.decoded[start:len(c.decoded):len(c.decoded)], value{})
		c.list.hasGenerated = true
		i := int32(len(c.waiting))
		if q.round == c.list.round {
			c.waiting[q.last].next = i
		} else {
			q.round, q.first = c.list.round, i
		}
		q.last = i
		c.waiting = append(c.waiting, waitingCall{id: call.id, next: noCall})
	}
	c.markCalled(call.id)
	c.calls = append(c.calls, call)
}

// markCalled records that a call has an id.
func (c *Conversation) markCalled(id int32) {
	for int(id) >= len(c.called) {
		c.called = append(c.called, false)
	}
	c.called[id] = true
}

// addAnswer adds a result and finds its call: the one with its id, or the first one without an id,
// of the same tool if the result names one.
func (c *Conversation) addAnswer(r *result, tool value) {
	if r.id.isText() {
		r.symbol = c.ids.number(c.decode(r.id), r.id)
	}
	if len(c.waiting) > 0 && (r.symbol == noSymbol || int(r.symbol) >= len(c.called) || !c.called[r.symbol]) {
		if w := c.nextWaiting(tool); w != nil {
			w.answered = true
			r.id, r.symbol = value{}, w.id
		}
	}
	c.results = append(c.results, *r)
}

// nextWaiting returns the first waiting call of a tool, or of any if tool has no name, or nil.
func (c *Conversation) nextWaiting(tool value) *waitingCall {
	first := &c.list.oldest
	if tool.isText() {
		name := c.toolSymbol(tool)
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
