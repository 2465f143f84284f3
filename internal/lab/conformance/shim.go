//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A shim is a proxy between the suite, which uses the reference server's names without prefixes,
// and an endpoint of several servers, whose names have prefixes. It adds them to names in
// requests and removes them from names in responses. A response with a name that lacks its
// prefix, which no client could use, becomes an error.
//
// Otherwise it does not change requests, except for white space around header values, which
// every server written in Go removes, including the gateway.
type shim struct {
	endpoint  string // endpoint of several servers
	server    string // name of the reference server
	other     string // name of the other server
	separator string
}

// Paths of names, URIs and task ids in requests, by method, and in responses.
var (
	names = map[string]string{
		"tools/call":          "params.name",
		"prompts/get":         "params.name",
		"completion/complete": "params.ref.name",
	}
	uris = map[string]string{
		"completion/complete":             "params.ref.uri",
		"resources/read":                  "params.uri",
		"resources/subscribe":             "params.uri",
		"resources/unsubscribe":           "params.uri",
		"resources/directory/read":        "params.uri",
		"skills/get":                      "params.uri",
		"notifications/resources/updated": "params.uri",
	}
	tasks = map[string]string{
		"tasks/get":    "params.taskId",
		"tasks/result": "params.taskId",
		"tasks/update": "params.taskId",
		"tasks/cancel": "params.taskId",
	}
	responseNames = []string{"result.tools.*.name", "result.prompts.*.name"}
	responseURIs  = []string{
		"result.resources.*.uri", "result.resourceTemplates.*.uriTemplate", "result.contents.*.uri",
		"result.content.*.uri", "result.content.*.resource.uri",
		"result.messages.*.content.uri", "result.messages.*.content.resource.uri",
		"result.result.content.*.uri", "result.result.content.*.resource.uri",
		"result.skills.*.uri", "result.skills.*.resources.*.uri", "result.skill.uri", "result.skill.resources.*.uri",
		"error.data.uri",
	}
	responseTasks = []string{"result.taskId"}
)

// ServeHTTP forwards a request and its response.
func (s *shim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the suite has disconnected
	}
	header := r.Header.Clone()
	for _, own := range []string{"Connection", "Content-Length", "Accept-Encoding"} {
		header.Del(own)
	}
	request, err := http.NewRequestWithContext(r.Context(), r.Method, s.endpoint,
		bytes.NewReader(s.addPrefixes(body, header)))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	request.Header, request.Host = header, r.Host
	response, err := plain.RoundTrip(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	for name, values := range response.Header {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if media != "text/event-stream" {
		if body, err = io.ReadAll(response.Body); err != nil {
			panic(http.ErrAbortHandler) // as the gateway did
		}
		w.WriteHeader(response.StatusCode)
		_, _ = w.Write(s.removePrefixes(body))
		return
	}
	w.WriteHeader(response.StatusCode)
	if err := s.stream(w, response.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// plain does not decompress responses.
var plain = &http.Transport{DisableCompression: true}

// stream forwards events one by one.
func (s *shim) stream(w http.ResponseWriter, events io.Reader) error {
	lines := bufio.NewReader(events)
	for flush := http.NewResponseController(w).Flush; ; {
		if lines.Buffered() == 0 {
			if err := flush(); err != nil {
				return err
			}
		}
		line, err := lines.ReadBytes('\n')
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			line = fmt.Appendf(nil, "data: %s\n", s.removePrefixes(bytes.TrimSpace(data)))
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// addPrefixes returns a message of the suite with prefixes. It also adds the prefix to the Mcp-Name
// header, whether that matches the message or not.
func (s *shim) addPrefixes(body []byte, header http.Header) []byte {
	message := decode(body)
	method, _ := message["method"].(string)
	var rename func(string) string
	for _, kind := range []struct {
		places map[string]string
		own    func(string) string
	}{{names, s.prefixedName}, {uris, s.aliasURI}, {tasks, s.prefixedTask}} {
		if replace(message, kind.places[method], kind.own) > 0 {
			rename = kind.own
		}
	}
	if rename == nil {
		return body
	}
	for i, value := range header["Mcp-Name"] {
		encoded, ok := strings.CutPrefix(value, "=?base64?")
		if !ok {
			header["Mcp-Name"][i] = mcp.HeaderText(rename(value))
		} else if name, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(encoded, "?=")); err == nil {
			header["Mcp-Name"][i] = "=?base64?" + base64.StdEncoding.EncodeToString([]byte(rename(string(name)))) + "?="
		}
	}
	return encode(message)
}

// removePrefixes returns a message of the endpoint without prefixes.
func (s *shim) removePrefixes(body []byte) []byte {
	message := decode(body)
	method, _ := message["method"].(string)
	var bare []string
	name := func(name string) string {
		if own, ok := strings.CutPrefix(name, s.server+s.separator); ok {
			return own
		}
		if !s.isOther(name) {
			bare = append(bare, name)
		}
		return name
	}
	uri := func(uri string) string {
		server, own, err := mcp.ParseURI(uri)
		switch {
		case err != nil:
			bare = append(bare, uri)
		case server == s.server:
			return own
		}
		return uri
	}
	task := func(id string) string {
		own, ok := strings.CutPrefix(id, s.server+mcp.Separator)
		if !ok {
			bare = append(bare, id)
		}
		return own
	}
	changed := replace(message, uris[method], uri)
	for _, path := range responseNames {
		changed += replace(message, path, name)
	}
	for _, path := range responseURIs {
		changed += replace(message, path, uri)
	}
	for _, path := range responseTasks {
		changed += replace(message, path, task)
	}
	switch {
	case bare != nil:
		delete(message, "result")
		message["error"] = map[string]any{"code": -32603, "message": fmt.Sprintf("shim: names without prefix: %q", bare)}
	case changed == 0:
		return body
	}
	return encode(message)
}

// isOther reports whether a name belongs to the other server.
func (s *shim) isOther(name string) bool { return strings.HasPrefix(name, s.other+s.separator) }

// prefixedName adds the prefix to a name.
func (s *shim) prefixedName(name string) string {
	if s.isOther(name) {
		return name // taken from a list
	}
	return s.server + s.separator + name
}

// aliasURI returns the alias of a URI at the endpoint, or the URI that clients expand from a
// template there.
func (s *shim) aliasURI(uri string) string {
	switch {
	case strings.HasPrefix(uri, "proxy://"):
		return uri // taken from a list
	case strings.HasPrefix(uri, "test://template/"):
		return mcp.TemplateURI(s.server, uri)
	}
	return mcp.ResourceURI(s.server, uri)
}

// prefixedTask adds the prefix to a task id.
func (s *shim) prefixedTask(id string) string { return s.server + mcp.Separator + id }

// decode returns a message, or nil if the body is not a JSON object.
func decode(body []byte) (message map[string]any) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if decoder.Decode(&message) != nil {
		return nil
	}
	return message
}

// encode returns a message as JSON in one line.
func encode(message map[string]any) []byte {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // cannot fail for decoded JSON
	}
	return text
}

// replace replaces the strings at a path in a value and returns their number. Steps of a path
// are members of objects, or * for all elements of an array.
func replace(value any, path string, rename func(string) string) (n int) {
	step, rest, more := strings.Cut(path, ".")
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			n += replace(element, rest, rename)
		}
	case map[string]any:
		if text, ok := value[step].(string); ok && !more {
			value[step] = rename(text)
			return 1
		} else if more {
			n = replace(value[step], rest, rename)
		}
	}
	return n
}
