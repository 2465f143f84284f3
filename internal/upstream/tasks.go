package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// Tasks outlive the calls that create them, and have ids of their own. A server may not tell
// clients apart, so the gateway remembers which client created a task, and with which call. An
// identified client can use only its own tasks, and only as long as it may make that call.

// Tasks are the known tasks and their owners: those created at this replica, and those of other
// replicas that were used here.
type Tasks struct {
	space *replicas.Space // store of all replicas; nil if there are no others

	mu    sync.Mutex
	cache *quota.Cache[taskKey, task]
}

type taskKey struct{ server, id string }

// A task is a task of a server, created by a client.
type task struct {
	identity    string
	target      mcp.Target      // of the call that created it
	annotations mcp.Annotations // of its tool

	shared time.Time // when it was last written to the shared store
}

// A sharedTask is a task in the shared store.
type sharedTask struct {
	Identity    string
	Target      mcp.Target
	Annotations mcp.Annotations
}

const (
	// taskTime is how long a task is remembered after its last use.
	taskTime = 24 * time.Hour
	// shareTime is the minimum time between updates of a task in the shared store.
	shareTime = time.Hour
	// maxListed is how many tasks a message can name. Each may be looked up in the shared store.
	maxListed = 1_000
	// lookupsAtOnce is how many tasks of a message are looked up at a time.
	lookupsAtOnce = 16
)

var tasksQuota = quota.NewKind("tasks")

// NewTasks returns an empty set of tasks. space is nil if there is only one replica.
func NewTasks(space *replicas.Space) *Tasks {
	limits := quota.Limits{Entries: 100_000, Bytes: 32 << 20}
	return &Tasks{space: space, cache: quota.NewCache[taskKey, task](tasksQuota, limits, taskTime, nil)}
}

// Close forgets all tasks.
func (t *Tasks) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cache.Close()
}

// add records the owner of a new task. A known task keeps its owner. Other replicas know the task
// when add returns, unless the store is unavailable: then it is written later.
func (t *Tasks) add(key taskKey, created task) {
	if _, known, _ := t.get(key); known {
		return
	}
	t.mu.Lock()
	created.shared = time.Now()
	t.put(key, created)
	t.mu.Unlock()
	if t.space == nil {
		return
	}
	if t.share(context.Background(), key, created) != nil {
		t.shareAsync(key, created)
	}
}

// share writes a task to the shared store. Replicas find it by its server, because they do not know
// the owner. It counts against the quota of the client, as in put.
func (t *Tasks) share(ctx context.Context, key taskKey, created task) error {
	return t.space.KeepForClient(ctx, created.identity, key.storeOwner(), key.id, created.encode(), taskTime)
}

// shareAsync shares the task in the background.
func (t *Tasks) shareAsync(key taskKey, created task) {
	share := func(ctx context.Context) error { return t.share(ctx, key, created) }
	t.space.WriteLater(key.storeOwner()+"\x00"+created.identity, key.id, len(created.encode()), share, nil)
}

// storeOwner returns the owner of the entry in the shared store.
func (k taskKey) storeOwner() string { return "tasks of " + k.server }

// encode encodes a task for the shared store.
func (t task) encode() []byte { return jsonrpc.Encode(sharedTask{t.identity, t.target, t.annotations}) }

// put caches a task under the quota of its client at its server, so a server that creates many
// tasks evicts only its own. The caller holds the lock.
func (t *Tasks) put(key taskKey, created task) {
	t.cache.Put(key.server+"\x00"+created.identity, key, created, int64(len(key.id)+len(created.target.Name)))
}

// get returns a task, and extends its lifetime. It also looks in the shared store.
func (t *Tasks) get(key taskKey) (found task, known bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, known = t.cache.Get(key); known {
		if t.space != nil && time.Since(found.shared) > shareTime {
			found.shared = time.Now()
			t.shareAsync(key, found)
		}
		t.put(key, found)
		return found, true, nil
	}
	if t.space == nil {
		return task{}, false, nil
	}
	t.mu.Unlock()
	value, err := t.space.Find(context.Background(), key.storeOwner(), key.id)
	t.mu.Lock()
	var stored sharedTask
	if err != nil || value == nil || json.Unmarshal(value, &stored) != nil {
		return task{}, false, err
	}
	found = task{stored.Identity, stored.Target, stored.Annotations, time.Time{}}
	t.put(key, found)
	return found, true, nil
}

// Has reports whether a client may use a task of a server: the client must be its owner, or neither
// has an identity.
func (t *Tasks) Has(c *access.Caller, s *Server, id string) bool {
	return t.HasEach(c, s, []string{id})[0]
}

// HasEach is Has for several tasks. It looks up [lookupsAtOnce] of them at a time.
func (t *Tasks) HasEach(c *access.Caller, s *Server, ids []string) (has []bool) {
	type lookup struct {
		task
		known bool
		err   error
	}
	for some := range slices.Chunk(ids, lookupsAtOnce) {
		found := make([]lookup, len(some))
		get := func(i int) { found[i].task, found[i].known, found[i].err = t.get(taskKey{s.Name, some[i]}) }
		var others sync.WaitGroup
		for i := range some[1:] {
			others.Go(func() { get(i + 1) })
		}
		get(0)
		others.Wait()
		for _, f := range found {
			if !f.known {
				has = append(has, f.err == nil && c.Identity == "") // tasks of unidentified clients are not bound
				continue
			}
			owner := *c
			owner.Annotations = f.annotations
			has = append(has, f.identity == c.Identity && owner.Allows(f.target))
		}
	}
	return has
}

// check refuses a message to a server that names a task of another client.
func (t *Tasks) check(c *access.Caller, s *Server, p *PostedMessage) *jsonrpc.Failure {
	var ids []string
	switch m := &p.Message; {
	case strings.HasPrefix(p.MethodName(), "tasks/") && m.Has(jsonrpc.TaskID):
		ids = []string{m.Text(jsonrpc.TaskID)}
	case m.Is(jsonrpc.Method, mcp.MethodListen) && m.Has(jsonrpc.TaskIDs):
		var listed []string // not ids, which would escape to the heap for every request
		if json.Unmarshal(m.Literal(jsonrpc.TaskIDs), &listed) != nil {
			return jsonrpc.InvalidParams("taskIds: not a list of ids").WithStatusOK()
		}
		if len(listed) > maxListed {
			return jsonrpc.InvalidParams("taskIds: too many entries").WithStatusOK()
		}
		ids = listed
	}
	for some := range slices.Chunk(ids, lookupsAtOnce) { // a wrong id ends the search
		if slices.Contains(t.HasEach(c, s, some), false) {
			return jsonrpc.InvalidParams("taskId: unknown task, or a task of another client").WithStatusOK()
		}
	}
	return nil
}

// A taskWatcher looks for a new task in a response, which passes unchanged.
type taskWatcher struct {
	next        http.ResponseWriter
	x           *Exchange
	target      mcp.Target // of the call
	request     []byte     // id of the request; nil for any
	reader      *jsonspan.Watcher
	media       httpbody.MediaType
	wroteHeader bool
	events      sse.Scanner

	// Of the message that is being parsed.
	isResponse bool // it is the response to the request
	task       string
}

// watchTasks returns a taskWatcher that writes to w, or w itself if the response cannot create a
// task.
func watchTasks(x *Exchange, w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	target := mcp.Target{Server: x.Server.Name, Kind: mcp.Other}
	switch {
	case strings.HasPrefix(x.MethodName(), "tasks/"):
		return w
	case x.answersAnyRequest(r.Method):
		// Responses come when they are resumed or, with HTTP+SSE, always. Clients of the latter do
		// not send their version.
		if r.Header.Get("Last-Event-Id") == "" && r.Header.Get(mcp.VersionHeader) != "" {
			return w
		}
	case !x.Message.IsRequest() || !bytes.Contains(x.Message.Raw, []byte("task")):
		return w // the client does not ask for a task
	default:
		if called, ok := mcp.TargetOf(x.Server.Name, &x.Message); ok {
			target = called
		}
	}
	r.Header.Del("Accept-Encoding") // the response is parsed
	watcher := &taskWatcher{next: w, x: x, target: target, request: x.Message.Literal(jsonrpc.ID)}
	watcher.reader = newTaskPaths.Watch(watcher.onValue)
	return watcher
}

// newTaskPaths are the paths of the id of a response, and of the task that it creates.
var newTaskPaths = jsonspan.CompilePaths("id", "result.task.taskId", "result.taskId")

// onValue handles a value of a message. Values come in any order.
func (w *taskWatcher) onValue(path int, k jsonspan.Kind, literal []byte) {
	switch {
	case k == jsonspan.Key:
	case path == 0:
		w.isResponse = w.request == nil || jsonrpc.SameID(w.request, literal)
	case k == jsonspan.String:
		w.task = string(jsonspan.AppendText(nil, literal[1:len(literal)-1]))
	}
	if w.isResponse && w.task != "" {
		w.x.Shared.Tasks.add(taskKey{w.x.Server.Name, w.task}, task{
			identity: w.x.Caller.Identity, target: w.target, annotations: w.x.Caller.Annotations,
		})
		w.task = ""
	}
}

func (w *taskWatcher) Header() http.Header         { return w.next.Header() }
func (w *taskWatcher) Unwrap() http.ResponseWriter { return w.next }

func (w *taskWatcher) WriteHeader(status int) {
	if status >= 200 && !w.wroteHeader {
		w.wroteHeader, w.media = true, httpbody.TypeOf(w.Header().Get("Content-Type"))
	}
	w.next.WriteHeader(status)
}

// Write parses before it forwards, because the client may use the task at once.
func (w *taskWatcher) Write(p []byte) (int, error) {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	if w.media != httpbody.EventStream {
		_, _ = w.reader.Write(p)
		return w.next.Write(p)
	}
	w.events.Each(p, func(kind sse.Kind, part []byte) {
		switch kind {
		case sse.Data:
			_, _ = w.reader.Write(part)
		case sse.Frame:
			w.reader.Gap(len(part))
		case sse.Dispatch:
			w.reader.Reset()
			w.isResponse, w.task = false, ""
		}
	})
	return w.next.Write(p)
}
