// Package prune leaves out of a text the lines that bear least on a goal.
//
// Lines are scored (features.go, weights.go), some of them are protected (protect.go
// and what it refers to), and of the rest those runs are kept that are worth their
// tokens (choose.go). What is removed is told by annotations and markers (render.go),
// under a handle by which the original can be had back (recover.go).
//
// It never summarises: kept lines are kept to the byte. The limits of a request hold
// to the line, whatever the scores say.
package prune
