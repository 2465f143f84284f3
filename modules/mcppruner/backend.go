package mcppruner

import "context"

// A Backend scores how relevant the lines of a text are to a goal.
type Backend interface {
	// Name returns the backend's name in statistics, warnings and metrics.
	Name() string
	// Score scores lines. If both results are nil, the built-in heuristic scores the lines.
	Score(ctx context.Context, goal string, lines []string) (*Scored, *Fault)
}

// Scored is the result of a reranker.
type Scored struct {
	Scores []float64 // one per line, NaN for lines not scored
	Docs   int       // number of lines scored
	Status int       // HTTP status
}

// A Fault says why a backend failed to score.
type Fault struct {
	Kind   string // http, parse or config; the warning is <backend>_<kind>_error
	Status int    // HTTP status of a failed response, or 0
	Err    error  // for the log; contains no secrets
}
