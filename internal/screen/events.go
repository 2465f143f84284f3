package screen

import (
	"bytes"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// keptRoom is how much room is kept between the events of a stream, which may stand
// for long.
const keptRoom = 64 << 10

// A held event is known by where its data stands, if that is in one line.
type event struct {
	lines    int  // of data, without empty ones
	from, to int  // where the data of the first stands
	open     bool // a line of it
}

// writeEvents takes the next bytes of an event stream.
func (w *Writer) writeEvents(p []byte) {
	w.events.Each(p, func(kind sse.Kind, part []byte) {
		switch {
		case w.err != nil:
		case kind == sse.Dispatch:
			w.endEvent()
		case len(w.held) == 0 && w.isLeftover(part):
			if !w.dropped {
				w.send(true)
				w.let(part)
			}
		default:
			w.holdPart(kind, part)
		}
	})
}

// holdPart holds a part of an event.
func (w *Writer) holdPart(kind sse.Kind, part []byte) {
	at, e := len(w.held), &w.event
	if w.hold(part); w.err != nil {
		return
	}
	if kind == sse.Data {
		if !e.open {
			e.lines++
		}
		if e.lines == 1 {
			if !e.open {
				e.from = at
			}
			e.to = len(w.held)
		}
		e.open = true
		return
	}
	e.open = false
	// A comment belongs to no event, and often is there to show that the stream is
	// alive. At the beginning of an event it need not wait.
	if w.held[0] == ':' && (part[0] == '\n' || part[0] == '\r') {
		w.release()
	}
}

const byteOrderMark = "\xEF\xBB\xBF"

// isLeftover reports whether a part of a stream that comes between events belongs to
// none: a byte order mark at the beginning, or an LF after the CR that ended an event
// or a comment.
func (w *Writer) isLeftover(part []byte) bool {
	if w.mark < len(byteOrderMark) {
		if part[0] == byteOrderMark[w.mark] {
			w.mark++
			return true
		}
		w.mark = len(byteOrderMark)
	}
	last := w.last
	w.last = 0
	return last == '\r' && part[0] == '\n'
}

// Named reports whether the event that edit is called for has such a name, in any of its
// lines.
func (w *Writer) Named(is func(name string) bool) bool {
	if w.mode != isStream {
		return false
	}
	var fields sse.Fields
	for event := w.held; len(event) > 0; {
		line, end, rest := cutLine(event)
		if event = rest; !bytes.HasPrefix(line, []byte("event:")) {
			continue
		}
		fields.Read(line)
		if fields.Read(end); is(fields.Type) {
			return true
		}
	}
	return false
}

// endEvent lets the event that is held through. At the end of a stream it may lack its
// end.
func (w *Writer) endEvent() {
	data := w.data()
	if len(data) == 0 {
		w.release()
		return
	}
	edited, err := w.edit(data)
	switch {
	case err != nil:
		w.err = err
	case len(edited) == 0:
		w.done(true)
	case bytes.Equal(edited, data):
		w.release()
	default:
		w.send(true)
		w.letLines(w.withData(edited))
		w.done(false)
	}
}

// release lets through what is held, with its data as it came.
func (w *Writer) release() {
	w.send(true)
	w.letLines(w.held)
	w.done(false)
}

// letLines lets an event through with the lines that are not data edited.
func (w *Writer) letLines(event []byte) {
	same := 0 // how much of event is to be let through as it is
	for rest := event; w.Line != nil && len(rest) > 0; {
		line, _, next := cutLine(rest)
		if _, isData := cutData(line); !isData && len(line) > 0 {
			if edited := w.Line(line); !bytes.Equal(edited, line) {
				at := len(event) - len(rest)
				w.let(event[same:at])
				w.let(edited)
				same = at + len(line)
			}
		}
		rest = next
	}
	w.let(event[same:])
}

// done forgets what was held, which has been let through or dropped.
func (w *Writer) done(dropped bool) {
	w.last, w.dropped, w.event = w.held[len(w.held)-1], dropped, event{}
	if w.held = w.held[:0]; cap(w.held) > keptRoom {
		w.forget()
	}
}

// data returns the data of the event that is held.
func (w *Writer) data() []byte {
	switch w.event.lines {
	case 0:
		return nil
	case 1:
		return w.held[w.event.from:w.event.to:w.event.to]
	}
	return dataOf(w.held)
}

// withData returns the event that is held with other data.
func (w *Writer) withData(data []byte) []byte {
	if w.event.lines == 1 && data[0] != ' ' && bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return slices.Concat(w.held[:w.event.from], data, w.held[w.event.to:])
	}
	return withData(w.held, data)
}

// cutLine takes the first line off an event, with its end.
func cutLine(event []byte) (line, end, rest []byte) {
	i := lineLen(event)
	if i == len(event) {
		return event, nil, nil
	}
	n := 1
	if event[i] == '\r' && i+1 < len(event) && event[i+1] == '\n' {
		n = 2
	}
	return event[:i], event[i : i+n], event[i+n:]
}

// lineLen returns how many bytes come before the first end of a line. It does not look far
// beyond, lest lines that end with CR each look through all others for an LF.
func lineLen(event []byte) int {
	const step = 1 << 10
	for at := 0; ; at += step {
		if at >= len(event) {
			return len(event)
		}
		near := event[at:min(at+step, len(event))]
		lf := bytes.IndexByte(near, '\n')
		if lf >= 0 {
			near = near[:lf]
		}
		if cr := bytes.IndexByte(near, '\r'); cr >= 0 {
			return at + cr
		}
		if lf >= 0 {
			return at + lf
		}
	}
}

// cutData returns the data that a line of an event has, if it has any.
func cutData(line []byte) (data []byte, ok bool) {
	data, ok = bytes.CutPrefix(line, []byte("data:"))
	return bytes.TrimPrefix(data, []byte(" ")), ok
}

// dataOf returns the data of an event, its lines put together.
func dataOf(event []byte) []byte {
	all := make([]byte, 0, len(event))
	for len(event) > 0 {
		line, _, rest := cutLine(event)
		event = rest
		if data, ok := cutData(line); ok {
			all = append(append(all, data...), '\n')
		}
	}
	return bytes.TrimSuffix(all, []byte{'\n'})
}

// withData returns an event with other data, which stands where its first line of data
// stood.
func withData(event, data []byte) []byte {
	out := make([]byte, 0, len(event)+len(data))
	written := false
	for len(event) > 0 {
		line, end, rest := cutLine(event)
		event = rest
		if _, ok := cutData(line); !ok {
			if n := len(out); n > 0 && out[n-1] == '\r' && len(line) == 0 && bytes.HasPrefix(end, []byte{'\n'}) {
				out[n-1] = '\n' // the two would be one end, where lines of data stood between them
			}
			out = append(append(out, line...), end...)
			continue
		}
		if !written {
			out = appendData(out, data, end)
			written = true
		}
	}
	return out
}

// appendData appends data as lines with this end. At the end of a stream the last may
// lack it.
func appendData(dst, data, end []byte) []byte {
	between := end
	if len(end) == 0 {
		between = []byte{'\n'}
	}
	for {
		line, broken, rest := cutLine(data)
		dst = append(append(dst, "data: "...), line...)
		if len(broken) == 0 {
			return append(dst, end...)
		}
		dst = append(dst, between...)
		data = rest
	}
}
