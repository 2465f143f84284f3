package screen

import (
	"bytes"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// maxIdleBuffer is how many bytes of buffer are kept between the events of a stream, which may be
// far apart.
const maxIdleBuffer = 64 << 10

// An event describes the data of a held event.
type event struct {
	dataLines            int  // lines of data that are not empty
	firstStart, firstEnd int  // position of the first one in held
	lineOpen             bool // the latest line of data has not ended
}

// writeEvents handles the next bytes of an event stream.
func (w *Writer) writeEvents(p []byte) {
	w.events.Each(p, func(kind sse.Kind, part []byte) {
		switch {
		case w.err != nil:
		case kind == sse.Dispatch:
			w.endEvent()
		case len(w.held) == 0 && w.isLeftover(part):
			if !w.lastDropped {
				w.sendHeader(true)
				w.forward(part)
			}
		default:
			w.holdPart(kind, part)
		}
	})
}

// holdPart holds a part of an event.
func (w *Writer) holdPart(kind sse.Kind, part []byte) {
	at, e := len(w.held), &w.event
	w.hold(part)
	if w.err != nil {
		return
	}
	if kind == sse.Data {
		if !e.lineOpen {
			e.dataLines++
		}
		if e.dataLines == 1 {
			if !e.lineOpen {
				e.firstStart = at
			}
			e.firstEnd = len(w.held)
		}
		e.lineOpen = true
		return
	}
	e.lineOpen = false
	// A comment belongs to no event and often keeps the stream alive. At the beginning of an event
	// it is sent at once.
	if w.held[0] == ':' && (part[0] == '\n' || part[0] == '\r') {
		w.forwardHeld()
	}
}

const byteOrderMark = "\xEF\xBB\xBF"

// isLeftover reports whether a part between events belongs to none of them: a byte order mark at
// the beginning, or an LF after the CR that ended an event or a comment.
func (w *Writer) isLeftover(part []byte) bool {
	if w.bomSeen < len(byteOrderMark) {
		if part[0] == byteOrderMark[w.bomSeen] {
			w.bomSeen++
			return true
		}
		w.bomSeen = len(byteOrderMark)
	}
	last := w.lastByte
	w.lastByte = 0
	return last == '\r' && part[0] == '\n'
}

// EventNamed reports whether the event that edit is called for has a matching name, in any of its
// lines.
func (w *Writer) EventNamed(match func(name string) bool) bool {
	if w.mode != eventStream {
		return false
	}
	var fields sse.Fields
	for event := w.held; len(event) > 0; {
		line, end, rest := cutLine(event)
		event = rest
		if !bytes.HasPrefix(line, []byte("event:")) {
			continue
		}
		fields.Read(line)
		fields.Read(end)
		if match(fields.Type) {
			return true
		}
	}
	return false
}

// endEvent edits the held event and passes it on. At the end of a stream the event may be
// incomplete.
func (w *Writer) endEvent() {
	data := w.data()
	if len(data) == 0 {
		w.forwardHeld()
		return
	}
	edited, err := w.edit(data)
	switch {
	case err != nil:
		w.err = err
	case len(edited) == 0:
		w.clearHeld(true)
	case bytes.Equal(edited, data):
		w.forwardHeld()
	default:
		w.sendHeader(true)
		w.forwardLines(w.withData(edited))
		w.clearHeld(false)
	}
}

// forwardHeld passes on the held event with its data unchanged.
func (w *Writer) forwardHeld() {
	w.sendHeader(true)
	w.forwardLines(w.held)
	w.clearHeld(false)
}

// forwardLines passes on an event with the lines that are not data edited.
func (w *Writer) forwardLines(event []byte) {
	start := 0 // of the bytes that were not passed on yet
	for rest := event; w.Line != nil && len(rest) > 0; {
		line, _, next := cutLine(rest)
		if _, isData := cutData(line); !isData && len(line) > 0 {
			if edited := w.Line(line); !bytes.Equal(edited, line) {
				at := len(event) - len(rest)
				w.forward(event[start:at])
				w.forward(edited)
				start = at + len(line)
			}
		}
		rest = next
	}
	w.forward(event[start:])
}

// clearHeld removes the held event, which was passed on or is dropped.
func (w *Writer) clearHeld(dropped bool) {
	w.lastByte, w.lastDropped, w.event = w.held[len(w.held)-1], dropped, event{}
	w.held = w.held[:0]
	if cap(w.held) > maxIdleBuffer {
		w.freeBuffer()
	}
}

// data returns the data of the held event.
func (w *Writer) data() []byte {
	switch w.event.dataLines {
	case 0:
		return nil
	case 1:
		return w.held[w.event.firstStart:w.event.firstEnd:w.event.firstEnd]
	}
	return dataOf(w.held)
}

// withData returns the held event with other data.
func (w *Writer) withData(data []byte) []byte {
	if w.event.dataLines == 1 && data[0] != ' ' && bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return slices.Concat(w.held[:w.event.firstStart], data, w.held[w.event.firstEnd:])
	}
	return withData(w.held, data)
}

// cutLine splits the first line and its end off an event.
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

// lineLen returns the number of bytes before the first line end. It searches in steps: otherwise,
// with lines that end with CR, each search for an LF would scan all the lines that follow.
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

// cutData returns the data of a line of an event, if it has any.
func cutData(line []byte) (data []byte, ok bool) {
	data, ok = bytes.CutPrefix(line, []byte("data:"))
	return bytes.TrimPrefix(data, []byte(" ")), ok
}

// dataOf returns the data of an event with its lines joined.
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

// withData returns an event with other data, in place of its first line of data.
func withData(event, data []byte) []byte {
	out := make([]byte, 0, len(event)+len(data))
	written := false
	for len(event) > 0 {
		line, end, rest := cutLine(event)
		event = rest
		if _, ok := cutData(line); !ok {
			if n := len(out); n > 0 && out[n-1] == '\r' && len(line) == 0 && bytes.HasPrefix(end, []byte{'\n'}) {
				out[n-1] = '\n' // without the data between them, CR and LF would become one line end
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

// appendData appends data as lines with this end. At the end of a stream the last line may lack it.
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
