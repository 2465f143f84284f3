package mcppruner

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
)

// longestTimeout is the maximum timeout in milliseconds. A larger timeout_ms counts as this.
const longestTimeout = 2 * 60 * 1000

// parsePrune reads the arguments of prune_text. chars is the length of the text in characters.
func parsePrune(arguments *object) (r *prune.Request, chars int, err error) {
	r = new(prune.Request)
	arguments.read()
	r.Text, chars = arguments.text("text")
	r.Goal, _ = arguments.text("goal_hint")
	source, _ := arguments.text("source_type")
	var ok bool
	if r.Source, ok = prune.ParseSource(source); !ok {
		arguments.invalid("source_type", "must be code, logs or docs")
	}
	options := arguments.object("options")
	r.Options = prune.Options{
		MaxPruneRatio:  options.fraction("max_prune_ratio"),
		MinKeepLines:   options.integer("min_keep_lines", 0, math.MaxInt32),
		Timeout:        time.Duration(options.integer("timeout_ms", 1, longestTimeout)) * time.Millisecond,
		AnnotateLines:  options.boolean("annotate_lines"),
		IncludeMarkers: options.boolean("include_markers"),
	}
	_ = options.end() // arguments.end returns its errors too
	return r, chars, arguments.end()
}

// prune handles prune_text.
func (x *request) prune(arguments *object) reply {
	r, chars, err := parsePrune(arguments)
	if err != nil {
		return x.invalidParams(err.Error())
	}
	r.Handles = x.handler.originals.Handles
	p := &pruning{
		handler: x.handler, owner: clientrequest.Identity(x.r),
		request: r, id: r.ID(), began: time.Now(),
	}
	p.run(x.r.Context(), chars)
	if x.r.Context().Err() == nil { // otherwise the client has gone, and the result may be incomplete
		p.count()
		x.pruned.Store(p)
	}
	return x.toolResult(jsonrpc.Encode(struct {
		PruneID     string             `json:"prune_id"`
		PrunedText  string             `json:"pruned_text"`
		Annotations []prune.Annotation `json:"annotations"`
		Stats       *stats             `json:"stats"`
		Warnings    []string           `json:"warnings"`
	}{
		p.result.PruneID, p.result.PrunedText, p.result.Annotations,
		&stats{p.result.Stats, &p.scoring}, p.result.Warnings,
	}))
}

// A pruning is one call of prune_text.
type pruning struct {
	handler *Handler
	owner   string
	request *prune.Request
	id      string
	began   time.Time

	scoring scoring
	result  *prune.Result
}

// run prunes the text. It always sets a result, whatever fails.
func (p *pruning) run(ctx context.Context, chars int) {
	defer func() {
		p.result.Stats.ElapsedMS = time.Since(p.began).Milliseconds()
	}()
	defer func() {
		if reason := recover(); reason != nil {
			p.handler.logger.Error("pruning panicked", zap.Any("panic", reason), zap.Stack("stack"))
			p.result = prune.Raw(p.request, prune.InternalError)
		}
	}()
	p.scoring.backend = p.handler.backend.Name()
	original := []byte(p.request.Text)
	kept := p.handler.originals.Put(p.owner, p.id, original)
	switch {
	case chars > p.handler.MaxInputChars:
		p.result = prune.Raw(p.request, prune.InputTooLarge)
		if !kept {
			p.result.Fallback(prune.RecoveryUnavailable)
		}
		return
	case !kept:
		p.result = prune.Raw(p.request, prune.RecoveryUnavailable)
		return
	}
	warnings := p.score(ctx)
	p.result = p.pruneQueued(ctx)
	p.result.Warnings = append(warnings, p.result.Warnings...)
	if p.scoring.fault != "" {
		p.result.Fallback(p.scoring.backend+"_error", p.scoring.fault)
	}
	p.handler.originals.Put(p.owner, p.id, original) // restart its lifetime
}

// slots bounds how many large texts are pruned concurrently: each keeps a CPU busy and takes up to
// about 200 MB.
var slots = make(chan struct{}, runtime.GOMAXPROCS(0))

// maxUnqueuedLines is the number of lines up to which a text is pruned without a slot: that takes
// milliseconds and little memory.
const maxUnqueuedLines = 5000

// pruneQueued prunes the text within the timeout of the request. A large text waits for a slot
// first.
func (p *pruning) pruneQueued(ctx context.Context) *prune.Result {
	ctx, cancel := context.WithTimeout(ctx, p.request.Options.Timeout)
	defer cancel()
	if prune.CountLines(p.request.Text) <= maxUnqueuedLines {
		return prune.Prune(ctx, p.request)
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
		return prune.Prune(ctx, p.request)
	case <-ctx.Done():
		return prune.Raw(p.request, prune.Timeout)
	}
}

// A scoring holds the backend's statistics for one text.
type scoring struct {
	backend  string
	reported bool // the backend has statistics
	cached   bool
	latency  time.Duration
	docs     int
	total    int
	status   int    // HTTP status, or 0
	fault    string // warning that the backend failed, or empty
}

// score sets the scores of the lines, from the cache or the backend. It returns warnings for the
// result.
func (p *pruning) score(ctx context.Context) (warnings []string) {
	warnings = []string{}
	lines := prune.Lines(p.request.Text)
	if p.request.Options.Removable(len(lines)) == 0 || len(lines) > prune.MaxLines {
		return warnings // nothing to choose
	}
	s := &p.scoring
	s.total = len(lines)
	key := p.id + " " + s.backend + " " + p.handler.backendConfig
	kept, hit := p.handler.scores.Get(p.owner, key)
	var scored *Scored
	if hit {
		scored, s.cached = decodeScored(kept), true
		warnings = append(warnings, "cache_hit")
	} else if scored = p.queryBackend(ctx, lines); scored == nil {
		return warnings
	}
	s.reported, s.docs, s.status = true, scored.Docs, scored.Status
	p.request.Scores = scored.Scores
	if scored.Docs < len(lines) {
		warnings = append(warnings, s.backend+"_docs_truncated")
	}
	if !hit {
		p.handler.scores.Put(p.owner, key, encodeScored(scored))
	}
	return warnings
}

// queryBackend calls the backend. It returns nil if the backend fails or leaves scoring to the
// heuristic.
func (p *pruning) queryBackend(ctx context.Context, lines []string) *Scored {
	s := &p.scoring
	began := time.Now()
	scored, fault := p.handler.backend.Score(ctx, p.request.Goal, lines)
	s.latency = time.Since(began)
	if fault == nil && scored != nil && len(scored.Scores) != len(lines) {
		fault = &Fault{Kind: "parse", Err: fmt.Errorf("got %d scores for %d lines", len(scored.Scores), len(lines))}
	}
	if fault == nil {
		return scored
	}
	s.reported, s.status = true, fault.Status
	s.fault = s.backend + "_" + fault.Kind + "_error"
	if ctx.Err() == nil {
		p.handler.logger.Warn("backend failed to score lines", zap.String("backend", s.backend),
			zap.String("fault", fault.Kind), zap.Int("status", fault.Status), zap.Error(fault.Err))
	}
	return nil
}

// maxScoreBytes bounds the size of the cache of scores.
const maxScoreBytes = 64 << 20

// encodeScored serializes scores for the cache.
func encodeScored(s *Scored) []byte {
	kept := make([]byte, 0, 8*(2+len(s.Scores)))
	kept = binary.LittleEndian.AppendUint64(kept, uint64(s.Docs))
	kept = binary.LittleEndian.AppendUint64(kept, uint64(s.Status))
	for _, score := range s.Scores {
		kept = binary.LittleEndian.AppendUint64(kept, math.Float64bits(score))
	}
	return kept
}

func decodeScored(kept []byte) *Scored {
	next := func() uint64 {
		n := binary.LittleEndian.Uint64(kept)
		kept = kept[8:]
		return n
	}
	s := &Scored{Docs: int(next()), Status: int(next())}
	s.Scores = make([]float64, len(kept)/8)
	for i := range s.Scores {
		s.Scores[i] = math.Float64frombits(next())
	}
	return s
}

// stats are the statistics of a result and of its backend. In JSON they are one object, in which
// the names of the backend's statistics begin with its name.
type stats struct {
	prune.Stats
	scoring *scoring
}

// MarshalJSON implements json.Marshaler.
func (s *stats) MarshalJSON() ([]byte, error) {
	all, err := json.Marshal(s.Stats)
	if err != nil {
		return nil, err
	}
	all = append(all[:len(all)-1], `,"backend":`...)
	all = append(all, jsonrpc.Quote(s.scoring.backend)...)
	if s.scoring.reported {
		all = s.scoring.append(all)
	}
	return append(all, '}'), nil
}

// append appends the members of the backend's statistics to an object without its closing brace.
func (s *scoring) append(object []byte) []byte {
	member := func(name string) {
		object = append(object, ',')
		object = append(object, jsonrpc.Quote(s.backend+name)...)
		object = append(object, ':')
	}
	number := func(name string, n int) {
		member(name)
		object = strconv.AppendInt(object, int64(n), 10)
	}
	number("_latency_ms", int(s.latency.Milliseconds()))
	number("_docs_scored", s.docs)
	number("_docs_total", s.total)
	if s.status != 0 {
		number("_http_status", s.status)
	}
	member("_cached")
	return strconv.AppendBool(object, s.cached)
}

// count updates the metrics.
func (p *pruning) count() {
	backend := p.scoring.backend
	durations.WithLabelValues(backend).Observe(time.Since(p.began).Seconds())
	prunedLines.WithLabelValues(backend).Add(float64(p.result.Stats.PrunedLines))
	savedTokens.WithLabelValues(backend).Add(float64(p.result.Stats.TokensSaved))
	if reason := p.fallback(); reason != "" {
		fallbacks.WithLabelValues(backend, reason).Inc()
	}
}

// fallback returns why the result is not as requested, or "". The reason is the last warning, which
// is the most specific one.
func (p *pruning) fallback() string {
	if !p.result.Stats.UsedFallback {
		return ""
	}
	return p.result.Warnings[len(p.result.Warnings)-1]
}

// MarshalLogObject adds statistics to the access log, but nothing of the text.
func (p *pruning) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("mcp_prune_backend", p.scoring.backend)
	enc.AddInt("mcp_pruned_lines", p.result.Stats.PrunedLines)
	enc.AddInt("mcp_prune_tokens_saved", p.result.Stats.TokensSaved)
	if reason := p.fallback(); reason != "" {
		enc.AddString("mcp_prune_fallback", reason)
	}
	return nil
}
