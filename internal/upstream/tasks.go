package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
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

// Tasks outlive the calls that begin them, and have ids of their own. To a server all clients
// may be one, so it is remembered who has begun which task, and by what call. A client that
// is known has no others, and only as long as it may still make that call.

// Tasks are the clients that have begun tasks, at this replica or, as far as they were asked for here,
// at others.
type Tasks struct {
	common *replicas.Space // where all replicas find them; nil if there are no others

	mu   sync.Mutex
	kept *quota.Cache[taskKey, task]
}

type taskKey struct{ server, id string }

// A task is what is known of one.
type task struct {
	identity    string
	target      mcp.Target      // of the call that began it
	annotations mcp.Annotations // of its tool

	shared time.Time // when the others were last told of it
}

// A sharedTask is a task as replicas tell each other of it.
type sharedTask struct {
	Identity    string
	Target      mcp.Target
	Annotations mcp.Annotations
}

const (
	// taskTime is how long a task is remembered after its last use.
	taskTime = 24 * time.Hour
	// shareTime is how long the use of a task is not told to other replicas.
	shareTime = time.Hour
)

var keptTasks = quota.NewKind("tasks")

func NewTasks(common *replicas.Space) *Tasks {
	limits := quota.Limits{Entries: 100_000, Bytes: 32 << 20}
	return &Tasks{common: common, kept: quota.NewCache[taskKey, task](keptTasks, limits, taskTime, nil)}
}

func (t *Tasks) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept.Close()
}

// add notes who has begun a task. A task has one owner. Other replicas know it when add returns, unless
// the store is unavailable: then they are told later.
func (t *Tasks) add(key taskKey, begun task) {
	if _, known, _ := t.get(key); known {
		return
	}
	t.mu.Lock()
	begun.shared = time.Now()
	t.put(key, begun)
	t.mu.Unlock()
	if t.common == nil {
		return
	}
	if t.share(context.Background(), key, begun) != nil {
		t.shareBehind(key, begun)
	}
}

// share has other replicas know a task. They find it by its server, as they do not know whose it is. It counts
// as one of its client there, as in put.
func (t *Tasks) share(ctx context.Context, key taskKey, begun task) error {
	return t.common.KeepOf(ctx, begun.identity, key.owner(), key.id, begun.told(), taskTime)
}

// shareBehind shares the task behind the answer.
func (t *Tasks) shareBehind(key taskKey, begun task) {
	share := func(ctx context.Context) error { return t.share(ctx, key, begun) }
	t.common.Behind(key.owner()+"\x00"+begun.identity, key.id, len(begun.told()), share, nil)
}

// owner returns the owner in the store that replicas find the task by.
func (k taskKey) owner() string { return "tasks of " + k.server }

// told returns what other replicas are told of a task.
func (k task) told() []byte { return jsonrpc.Encode(sharedTask{k.identity, k.target, k.annotations}) }

// put keeps a task as one of its client at its server: a server that says it has begun very
// many pushes out its own. The caller holds the lock.
func (t *Tasks) put(key taskKey, begun task) {
	t.kept.Put(key.server+"\x00"+begun.identity, key, begun, int64(len(key.id)+len(begun.target.Name)))
}

// get returns a task, and remembers it for longer. One that is not known here may be known to others.
func (t *Tasks) get(key taskKey) (found task, known bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, known = t.kept.Get(key); known {
		if t.common != nil && time.Since(found.shared) > shareTime {
			found.shared = time.Now()
			t.shareBehind(key, found)
		}
		t.put(key, found)
		return found, true, nil
	}
	if t.common == nil {
		return task{}, false, nil
	}
	t.mu.Unlock()
	value, err := t.common.Find(context.Background(), key.owner(), key.id)
	t.mu.Lock()
	var told sharedTask
	if err != nil || value == nil || json.Unmarshal(value, &told) != nil {
		return task{}, false, err
	}
	found = task{told.Identity, told.Target, told.Annotations, time.Time{}}
	t.put(key, found)
	return found, true, nil
}

// Has reports whether a client may ask for a task of a server. It must be known whose it is, or that
// it has no owner.
func (t *Tasks) Has(c *access.Caller, s *Server, id string) bool {
	found, known, err := t.get(taskKey{s.Name, id})
	if !known {
		return err == nil && c.Identity == "" // tasks of unknown clients are not bound
	}
	who := *c
	who.Annotations = found.annotations
	return found.identity == c.Identity && who.Allows(found.target)
}

// claimTasks refuses a request for tasks that are not all the client's.
func (x *Exchange) claimTasks() *jsonrpc.Failure {
	var ids []string
	switch m := &x.Message; {
	case strings.HasPrefix(x.MethodName(), "tasks/") && m.Has(jsonrpc.TaskID):
		ids = []string{m.Text(jsonrpc.TaskID)}
	case m.Is(jsonrpc.Method, mcp.MethodListen) && m.Has(jsonrpc.TaskIDs):
		var listed []string // not ids, which would be allocated for every request then
		if json.Unmarshal(m.Literal(jsonrpc.TaskIDs), &listed) != nil {
			return jsonrpc.InvalidParams("taskIds: not a list of ids").AsAnswer()
		}
		ids = listed
	}
	for _, id := range ids {
		if !x.Shared.Tasks.Has(&x.Caller, x.Server, id) {
			return jsonrpc.InvalidParams("taskId: unknown task, or a task of another client").AsAnswer()
		}
	}
	return nil
}

// watchTasks returns w as what is written to if the answer may begin a task of a client that
// is known, or w itself.
func (x *Exchange) watchTasks(r *http.Request, w http.ResponseWriter) http.ResponseWriter {
	target := mcp.Target{Server: x.Server.Name, Kind: mcp.Other}
	switch {
	case x.Caller.Identity == "" || strings.HasPrefix(x.MethodName(), "tasks/"):
		return w
	case x.answersAny(r.Method):
		// Answers come when they are resumed or, of the first revision of the protocol, all
		// of them. Clients of that do not name their version.
		if r.Header.Get("Last-Event-Id") == "" && r.Header.Get(mcp.VersionHeader) != "" {
			return w
		}
	case !x.Message.IsRequest() || !bytes.Contains(x.Message.Raw, []byte("task")):
		return w // the client does not know of tasks
	default:
		if asked, ok := mcp.TargetOf(x.Server.Name, &x.Message); ok {
			target = asked
		}
	}
	r.Header.Del("Accept-Encoding") // the answer is read
	watching := &taskWatcher{next: w, request: x.Message.Literal(jsonrpc.ID)}
	watching.note = func(id string) {
		x.Shared.Tasks.add(taskKey{x.Server.Name, id}, task{
			identity: x.Caller.Identity, target: target, annotations: x.Caller.Annotations,
		})
	}
	watching.reader = beginPaths.Watch(watching.found)
	return watching
}

// beginPaths are where an answer has its own id, and that of the task that it begins.
var beginPaths = jsonspan.CompilePaths("id", "result.task.taskId", "result.taskId")

// A taskWatcher looks for a task in an answer, which passes as it is.
type taskWatcher struct {
	next    http.ResponseWriter
	request []byte // the id of what is answered, nil if that can be anything
	note    func(task string)
	reader  *jsonspan.Watcher
	media   httpbody.MediaType
	begun   bool
	events  sse.Scanner

	// of the message that is being read
	answers bool // the request
	task    string
}

// found takes a value of a message, in whatever order they come.
func (w *taskWatcher) found(path int, k jsonspan.Kind, literal []byte) {
	switch {
	case k == jsonspan.Key:
	case path == 0:
		w.answers = w.request == nil || jsonrpc.SameID(w.request, literal)
	case k == jsonspan.String:
		w.task = string(jsonspan.AppendText(nil, literal[1:len(literal)-1]))
	}
	if w.answers && w.task != "" {
		w.note(w.task)
		w.task = ""
	}
}

func (w *taskWatcher) Header() http.Header         { return w.next.Header() }
func (w *taskWatcher) Unwrap() http.ResponseWriter { return w.next }

func (w *taskWatcher) WriteHeader(status int) {
	if status >= 200 && !w.begun {
		w.begun, w.media = true, httpbody.TypeOf(w.Header().Get("Content-Type"))
	}
	w.next.WriteHeader(status)
}

// Write looks before the client can: it may ask for the task at once.
func (w *taskWatcher) Write(p []byte) (int, error) {
	if !w.begun {
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
			w.answers, w.task = false, ""
		}
	})
	return w.next.Write(p)
}

// Interface guard
var _ http.ResponseWriter = (*taskWatcher)(nil)
