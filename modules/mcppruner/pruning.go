package mcppruner

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
)

// longestTimeout is what larger values of timeout_ms count as, in milliseconds.
const longestTimeout = 2 * 60 * 1000

// parsePrune reads the arguments of prune_text. It also returns how many characters
// the text has.
func parsePrune(arguments *object) (r *prune.Request, chars int, err error) {
	r = new(prune.Request)
	arguments.read()
	r.Text, chars = arguments.text("text")
	r.Goal, _ = arguments.text("goal_hint")
	source, _ := arguments.text("source_type")
	var ok bool
	if r.Source, ok = prune.ParseSource(source); !ok {
		arguments.wrong("source_type", "must be code, logs or docs")
	}
	options := arguments.object("options")
	r.Options = prune.Options{
		MaxPruneRatio:  options.fraction("max_prune_ratio"),
		MinKeepLines:   options.whole("min_keep_lines", 0, math.MaxInt32),
		Timeout:        time.Duration(options.whole("timeout_ms", 1, longestTimeout)) * time.Millisecond,
		AnnotateLines:  options.boolean("annotate_lines"),
		IncludeMarkers: options.boolean("include_markers"),
	}
	_ = options.end() // which arguments returns, too
	return r, chars, arguments.end()
}

// prune answers prune_text.
func (x *request) prune(arguments *object) reply {
	r, chars, err := parsePrune(arguments)
	if err != nil {
		return x.wrong(err.Error())
	}
	r.Handles = x.handler.originals.Handles
	p := &pruning{handler: x.handler, owner: clientrequest.Identity(x.r), request: r, id: r.ID(), began: time.Now()}
	p.run(x.r.Context(), chars)
	if x.r.Context().Err() == nil { // else nobody waits for it, and it may have been cut short
		p.count()
		x.pruned.Store(p)
	}
	return x.tell(jsonrpc.Encode(struct {
		PruneID     string             `json:"prune_id"`
		PrunedText  string             `json:"pruned_text"`
		Annotations []prune.Annotation `json:"annotations"`
		Stats       *stats             `json:"stats"`
		Warnings    []string           `json:"warnings"`
	}{p.result.PruneID, p.result.PrunedText, p.result.Annotations, &stats{p.result.Stats, &p.scoring}, p.result.Warnings}))
}

// A pruning is what is done to a text.
type pruning struct {
	handler *Handler
	owner   string
	request *prune.Request
	id      string
	began   time.Time

	scoring scoring
	result  *prune.Result
}

// run prunes. Whatever fails, there is a result.
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
	p.result = p.takeTurn(ctx)
	p.result.Warnings = append(warnings, p.result.Warnings...)
	if p.scoring.fault != "" {
		p.result.Fallback(p.scoring.backend+"_error", p.scoring.fault)
	}
	p.handler.originals.Put(p.owner, p.id, original) // its time begins now
}

// turns bounds how many large texts are pruned at once: that is work for a processor,
// and takes up to some 200 MB.
var turns = make(chan struct{}, runtime.GOMAXPROCS(0))

// small is how many lines a text has that need not wait for others: it takes some
// milliseconds, and little memory.
const small = 5000

// takeTurn prunes when it is our turn, unless that is too late.
func (p *pruning) takeTurn(ctx context.Context) *prune.Result {
	ctx, cancel := context.WithTimeout(ctx, p.request.Options.Timeout)
	defer cancel()
	if strings.Count(p.request.Text, "\n") <= small {
		return prune.Prune(ctx, p.request)
	}
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
		return prune.Prune(ctx, p.request)
	case <-ctx.Done():
		return prune.Raw(p.request, prune.Timeout)
	}
}

// A scoring is what a backend was asked, for the statistics.
type scoring struct {
	backend string
	asked   bool // there is something to tell of it
	cached  bool
	latency time.Duration
	docs    int
	total   int
	status  int    // of HTTP, 0 for none
	fault   string // as a warning
}

// score has the backend score the lines of the text, unless it has done so a short
// while ago. It returns what is to be told with the result.
func (p *pruning) score(ctx context.Context) (warnings []string) {
	warnings = []string{}
	lines := prune.Lines(p.request.Text)
	if p.request.Options.Removable(len(lines)) == 0 || len(lines) > prune.MaxLines {
		return warnings // there is nothing to choose
	}
	s := &p.scoring
	s.total = len(lines)
	key := p.id + " " + s.backend + " " + p.handler.reranker
	kept, hit := p.handler.scores.Get(p.owner, key)
	var scored *Scored
	if hit {
		scored, s.cached = decodeScored(kept), true
		warnings = append(warnings, "cache_hit")
	} else if scored = p.ask(ctx, lines); scored == nil {
		return warnings
	}
	s.asked, s.docs, s.status = true, scored.Docs, scored.Status
	p.request.Scores = scored.Scores
	if scored.Docs < len(lines) {
		warnings = append(warnings, s.backend+"_docs_truncated")
	}
	if !hit {
		p.handler.scores.Put(p.owner, key, encodeScored(scored))
	}
	return warnings
}

// ask asks the backend. It returns nil if that leaves the work to us, or has failed.
func (p *pruning) ask(ctx context.Context, lines []string) *Scored {
	s := &p.scoring
	began := time.Now()
	scored, fault := p.handler.backend.Score(ctx, p.request.Goal, lines)
	s.latency = time.Since(began)
	if fault == nil && scored != nil && len(scored.Scores) != len(lines) {
		fault = &Fault{Kind: "parse", Err: fmt.Errorf("%d scores of %d lines", len(scored.Scores), len(lines))}
	}
	if fault == nil {
		return scored
	}
	s.asked, s.status = true, fault.Status
	s.fault = s.backend + "_" + fault.Kind + "_error"
	if ctx.Err() == nil {
		p.handler.logger.Warn("backend has not scored", zap.String("backend", s.backend), zap.String("fault", fault.Kind), zap.Int("status", fault.Status), zap.Error(fault.Err))
	}
	return nil
}

// maxScoreBytes is what all scores may take that are kept for a while.
const maxScoreBytes = 64 << 20

// encodeScored returns scores as a store can keep them.
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

// stats are the statistics of a result and those of the backend, whose names begin
// with that of the backend.
type stats struct {
	prune.Stats
	scoring *scoring
}

// MarshalJSON puts both into one object.
func (s *stats) MarshalJSON() ([]byte, error) {
	all, err := json.Marshal(s.Stats)
	if err != nil {
		return nil, err
	}
	all = append(all[:len(all)-1], `,"backend":`...)
	all = append(all, jsonrpc.Quote(s.scoring.backend)...)
	if s.scoring.asked {
		all = s.scoring.append(all)
	}
	return append(all, '}'), nil
}

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

// count counts what was done.
func (p *pruning) count() {
	backend := p.scoring.backend
	durations.WithLabelValues(backend).Observe(time.Since(p.began).Seconds())
	prunedLines.WithLabelValues(backend).Add(float64(p.result.Stats.PrunedLines))
	savedTokens.WithLabelValues(backend).Add(float64(p.result.Stats.TokensSaved))
	if reason := p.fallback(); reason != "" {
		fallbacks.WithLabelValues(backend, reason).Inc()
	}
}

// fallback is why the result is not what was asked for: its last warning, which says
// most.
func (p *pruning) fallback() string {
	if !p.result.Stats.UsedFallback {
		return ""
	}
	return p.result.Warnings[len(p.result.Warnings)-1]
}

// MarshalLogObject puts what was done into the access log, and nothing of the text.
func (p *pruning) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("mcp_prune_backend", p.scoring.backend)
	enc.AddInt("mcp_pruned_lines", p.result.Stats.PrunedLines)
	enc.AddInt("mcp_prune_tokens_saved", p.result.Stats.TokensSaved)
	if reason := p.fallback(); reason != "" {
		enc.AddString("mcp_prune_fallback", reason)
	}
	return nil
}
