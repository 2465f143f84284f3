package mcppruner

import "context"

// A Backend says how much the lines of a text bear on a goal.
type Backend interface {
	// Name is what statistics, warnings and metrics call it.
	Name() string
	// Score scores lines. No scores and no fault leave the work to our own estimate.
	Score(ctx context.Context, goal string, lines []string) (*Scored, *Fault)
}

// Scored is the answer of a backend that is a reranker.
type Scored struct {
	Scores []float64 // one per line, NaN where it was not scored
	Docs   int       // how many lines were scored
	Status int       // of the HTTP response
}

// A Fault is why a backend has not scored.
type Fault struct {
	Kind   string // http, parse or config: the warning is <backend>_<kind>_error
	Status int    // of an HTTP response that says so, or 0
	Err    error  // for the log; never has a secret
}
