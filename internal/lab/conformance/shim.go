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

// A shim stands between the suite, which knows the fixtures of the reference server
// by their bare names, and an aggregate, where they have prefixes. It adds these to
// what the suite names, and takes them off what the aggregate names. It is strict
// about the latter: an answer with a bare name, which no client could use, becomes
// an error.
//
// What the suite sends is as it was otherwise. Only white space around the values of
// headers is lost, as in any server written in Go: the gateway is no other.
type shim struct {
	endpoint  string // of the aggregate
	server    string // that the suite is to see
	other     string // behind the same endpoint
	separator string
}

// names, uris and tasks are where requests, by their methods, and answers name things.
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
	answerNames = []string{"result.tools.*.name", "result.prompts.*.name"}
	answerURIs  = []string{
		"result.resources.*.uri", "result.resourceTemplates.*.uriTemplate", "result.contents.*.uri",
		"result.content.*.uri", "result.content.*.resource.uri",
		"result.messages.*.content.uri", "result.messages.*.content.resource.uri",
		"result.result.content.*.uri", "result.result.content.*.resource.uri",
		"result.skills.*.uri", "result.skills.*.resources.*.uri", "result.skill.uri", "result.skill.resources.*.uri",
		"error.data.uri",
	}
	answerTasks = []string{"result.taskId"}
)

// ServeHTTP passes a request on, and its answer back.
func (s *shim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the suite has hung up
	}
	header := r.Header.Clone()
	for _, own := range []string{"Connection", "Content-Length", "Accept-Encoding"} {
		header.Del(own)
	}
	request, err := http.NewRequestWithContext(r.Context(), r.Method, s.endpoint, bytes.NewReader(s.asked(body, header)))
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
			panic(http.ErrAbortHandler) // as the gateway has done
		}
		w.WriteHeader(response.StatusCode)
		_, _ = w.Write(s.answered(body))
		return
	}
	w.WriteHeader(response.StatusCode)
	if err := s.stream(w, response.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// plain takes answers as they come.
var plain = &http.Transport{DisableCompression: true}

// stream passes events on, one after the other.
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
			line = fmt.Appendf(nil, "data: %s\n", s.answered(bytes.TrimSpace(data)))
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

// asked returns a message of the suite as the aggregate is to get it. Of its
// headers, Mcp-Name repeats what it names, or is wrong and stays so.
func (s *shim) asked(body []byte, header http.Header) []byte {
	message := decode(body)
	method, _ := message["method"].(string)
	var rename func(string) string
	for _, kind := range []struct {
		places map[string]string
		own    func(string) string
	}{{names, s.ownName}, {uris, s.ownURI}, {tasks, s.ownTask}} {
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

// answered returns a message of the aggregate as the suite is to get it.
func (s *shim) answered(body []byte) []byte {
	message := decode(body)
	method, _ := message["method"].(string)
	var bare []string
	name := func(name string) string {
		if own, ok := strings.CutPrefix(name, s.server+s.separator); ok {
			return own
		}
		if !s.others(name) {
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
	for _, path := range answerNames {
		changed += replace(message, path, name)
	}
	for _, path := range answerURIs {
		changed += replace(message, path, uri)
	}
	for _, path := range answerTasks {
		changed += replace(message, path, task)
	}
	switch {
	case bare != nil:
		delete(message, "result")
		message["error"] = map[string]any{"code": -32603, "message": fmt.Sprintf("shim: the aggregate uses bare names: %q", bare)}
	case changed == 0:
		return body
	}
	return encode(message)
}

// others reports whether a name is one of the other server.
func (s *shim) others(name string) bool { return strings.HasPrefix(name, s.other+s.separator) }

// ownName returns a name as the aggregate has it.
func (s *shim) ownName(name string) string {
	if s.others(name) {
		return name // from a list
	}
	return s.server + s.separator + name
}

// ownURI returns a URI as the aggregate has it, or as clients make it of one of the
// aggregate's templates.
func (s *shim) ownURI(uri string) string {
	switch {
	case strings.HasPrefix(uri, "proxy://"):
		return uri // from a list
	case strings.HasPrefix(uri, "test://template/"):
		return mcp.TemplateURI(s.server, uri)
	}
	return mcp.ResourceURI(s.server, uri)
}

// ownTask returns the id of a task as the aggregate has it.
func (s *shim) ownTask(id string) string { return s.server + mcp.Separator + id }

// decode returns a message, or nil if this is none.
func decode(body []byte) (message map[string]any) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if decoder.Decode(&message) != nil {
		return nil
	}
	return message
}

// encode returns the text of a message, in one line.
func encode(message map[string]any) []byte {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // it was decoded
	}
	return text
}

// replace replaces the strings at a path in a value, whose steps are members of
// objects and * for all elements of an array. It returns how many there are.
func replace(value any, path string, by func(string) string) (n int) {
	step, rest, more := strings.Cut(path, ".")
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			n += replace(element, rest, by)
		}
	case map[string]any:
		if text, ok := value[step].(string); ok && !more {
			value[step] = by(text)
			return 1
		} else if more {
			n = replace(value[step], rest, by)
		}
	}
	return n
}
