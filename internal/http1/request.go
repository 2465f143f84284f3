package http1

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// sendsItself reports whether t sends a request itself: it has an http URL, a body of known length
// or none, no proxy, and nothing that changes the connection. Invalid requests go to the standard
// transport, which returns a proper error.
func (t *Transport) sendsItself(r *http.Request) bool {
	switch {
	case !t.canSend,
		r.URL == nil, r.URL.Scheme != "http", r.URL.Host == "", !isASCII(r.URL.Host),
		!httpguts.ValidHeaderFieldName(r.Method), r.Method == http.MethodConnect,
		!isPlainHost(cmp.Or(r.Host, r.URL.Host)),
		r.Close, len(r.TransferEncoding) > 0, len(r.Trailer) > 0,
		//lint:ignore SA1019 it is deprecated, but can be set
		r.Cancel != nil,
		hasBody(r) != (r.ContentLength > 0), r.ContentLength < 0, r.ContentLength > maxRequest,
		!isPlainHeader(r.Header):
		return false
	}
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && hasOtherHooks(trace) {
		return false
	}
	if t.standard.Proxy != nil {
		proxy, err := t.standard.Proxy(r)
		return proxy == nil && err == nil
	}
	return true
}

// isPlainHost reports whether a host can be sent unchanged: it is not an international name, and
// has no IPv6 zone.
func isPlainHost(host string) bool {
	return isASCII(host) && strings.IndexByte(host, '%') < 0 && httpguts.ValidHostHeader(host)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// isPlainHeader reports whether a header is valid, and asks for nothing that t does not support.
func isPlainHeader(header http.Header) bool {
	if header == nil {
		return false
	}
	for name, values := range header {
		switch name {
		case "Connection", "Upgrade", "Expect":
			return false
		case "Incremental": // the server wants the request before its end
			return false
		}
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return false
			}
		}
	}
	return true
}

// hasOtherHooks reports whether a trace has hooks that t does not call.
func hasOtherHooks(trace *httptrace.ClientTrace) bool {
	return trace.GetConn != nil || trace.GotConn != nil || trace.PutIdleConn != nil ||
		trace.GotFirstResponseByte != nil || trace.Got100Continue != nil ||
		trace.DNSStart != nil || trace.DNSDone != nil || trace.ConnectStart != nil || trace.ConnectDone != nil ||
		trace.TLSHandshakeStart != nil || trace.TLSHandshakeDone != nil ||
		trace.WroteHeaderField != nil || trace.WroteHeaders != nil || trace.WroteRequest != nil ||
		trace.Wait100Continue != nil
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// asksForGzip reports whether t itself asks for a compressed response, and decodes it. It does so
// in the same cases as net/http.
func (t *Transport) asksForGzip(r *http.Request) bool {
	return !t.standard.DisableCompression && r.Method != http.MethodHead &&
		r.Header.Get("Accept-Encoding") == "" && r.Header.Get("Range") == ""
}

// excluded are headers that are not written from a request's map.
var excluded = map[string]bool{
	"Host": true, "User-Agent": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true,
}

// writeHead writes a request up to its body. [Transport.sendsItself] must have accepted the
// request. It fails if the URL has control characters.
func writeHead(w *bytes.Buffer, r *http.Request, gzip bool) (ok bool) {
	target := r.URL.RequestURI()
	if strings.ContainsFunc(target, unicode.IsControl) {
		return false
	}
	w.WriteString(r.Method)
	w.WriteByte(' ')
	w.WriteString(target)
	w.WriteString(" HTTP/1.1\r\nHost: ")
	w.WriteString(cmp.Or(r.Host, r.URL.Host))
	w.WriteString("\r\n")
	agent := "Go-http-client/1.1"
	if _, ok := r.Header["User-Agent"]; ok {
		agent = r.Header.Get("User-Agent")
	}
	if agent != "" {
		w.WriteString("User-Agent: ")
		w.WriteString(textproto.TrimString(agent))
		w.WriteString("\r\n")
	}
	switch {
	case r.ContentLength > 0, r.Method == http.MethodPost, r.Method == http.MethodPut, r.Method == http.MethodPatch:
		w.WriteString("Content-Length: ")
		w.Write(strconv.AppendInt(w.AvailableBuffer(), r.ContentLength, 10))
		w.WriteString("\r\n")
	}
	_ = r.Header.WriteSubset(w, excluded) // a buffer never fails
	if gzip {
		w.WriteString("Accept-Encoding: gzip\r\n")
	}
	w.WriteString("\r\n")
	return true
}

// readBody appends the body of a request to its head, and closes it.
func readBody(w *bytes.Buffer, r *http.Request) error {
	if !hasBody(r) {
		return nil
	}
	defer r.Body.Close()
	w.Grow(int(r.ContentLength))
	data := w.AvailableBuffer()[:r.ContentLength]
	if _, err := io.ReadFull(r.Body, data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	w.Write(data)
	return nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

// isIdempotent reports whether a request can be sent twice, by the rules of net/http.
func isIdempotent(r *http.Request) bool {
	if hasBody(r) && r.GetBody == nil {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// keepAliveTimeout returns the idle timeout that a server announces, in seconds.
func keepAliveTimeout(values []string) (seconds int, ok bool) {
	for _, value := range values {
		for parameter := range strings.SplitSeq(value, ",") {
			name, number, _ := strings.Cut(parameter, "=")
			if strings.EqualFold(textproto.TrimString(name), "timeout") {
				seconds, err := strconv.Atoi(textproto.TrimString(number))
				return seconds, err == nil
			}
		}
	}
	return 0, false
}
