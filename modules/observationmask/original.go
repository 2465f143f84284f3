package observationmask

import (
	"encoding/binary"
	"net/http"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
)

// An original is a masked text in the store.
type original struct {
	request Request // request of the response that contained it, without the goal
	focused bool    // the request had a goal
	body    []byte  // raw JSON string body, with escapes
}

// header returns the bytes that are stored before the body.
func (o *original) header() []byte {
	header := []byte{0, byte(o.request.About.Kind)}
	if o.focused {
		header[0] = 1
	}
	for _, text := range [...]string{o.request.About.Name, o.request.Label} {
		header = binary.AppendUvarint(header, uint64(len(text)))
		header = append(header, text...)
	}
	return header
}

// readOriginal decodes a stored original.
func readOriginal(server string, kept []byte) *original {
	o := &original{focused: kept[0] != 0}
	o.request.About = mcp.Target{Server: server, Kind: mcp.TargetKind(kept[1])}
	rest := kept[2:]
	for _, text := range [...]*string{&o.request.About.Name, &o.request.Label} {
		size, n := binary.Uvarint(rest)
		*text, rest = string(rest[n:][:size]), rest[n:][size:]
	}
	o.body = rest
	return o
}

// labels returns the label values of the counters of originals.
func (o *original) labels() []string {
	focused := "no"
	if o.focused {
		focused = "yes"
	}
	return append(o.request.labels(o.request.About.Server), focused)
}

// saver returns a function that stores an original for the client of r and returns its handle, or
// nil if originals are not kept.
func (h *Handler) saver(r *http.Request) func([]byte) string {
	if h.store == nil {
		return nil
	}
	owner := clientrequest.Identity(r)
	request := requestOf(r)
	o := original{request: *request, focused: request.Goal != ""}
	o.request.About.Server = h.Server
	header := o.header()
	return func(body []byte) string {
		handle := h.store.Handles.New(mask.HandlePrefix, []byte(owner), header, body)
		if !h.store.Put(h.scope(owner), handle, slices.Concat(header, body)) {
			return ""
		}
		originals.WithLabelValues(o.labels()...).Inc()
		if request.Report != nil {
			request.Report.AddOriginal(handle)
		}
		return handle
	}
}

// scope returns the owner of a client's originals in the store. It includes the server, because
// servers may share a store, and the client may not use all of them.
func (h *Handler) scope(client string) string { return h.Server + "\x00" + client }

// Place returns where a client's originals are stored.
func (h *Handler) Place(client string) storepool.Place {
	return storepool.Place{Store: h.store, Owner: h.scope(client)}
}

// Original returns a client's original: the raw body of a JSON string, with escapes, and the target
// of the request whose response contained it. The original counts as recovered.
func (h *Handler) Original(client, handle string) (body []byte, target mcp.Target, ok bool) {
	if h.store == nil {
		return nil, mcp.Target{}, false
	}
	kept, first, ok := h.store.GetFirst(h.scope(client), handle)
	if !ok {
		return nil, mcp.Target{}, false
	}
	o := readOriginal(h.Server, kept)
	if first {
		recovered.WithLabelValues(o.labels()...).Inc()
	}
	return o.body, o.request.About, true
}

// Kept returns the same body as Original, for an operator. The original does not count as
// recovered.
func (h *Handler) Kept(client, handle string) (body []byte, ok bool) {
	if h.store == nil {
		return nil, false
	}
	kept, ok := h.store.Get(h.scope(client), handle)
	if !ok {
		return nil, false
	}
	return readOriginal(h.Server, kept).body, true
}
