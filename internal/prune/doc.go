// Package prune leaves out of a text the lines that bear least on a goal.
//
// A text is read twice: for how its lines belong together (outline.go, and a file for
// each source; syntax.go), and for what tells whether they bear on the goal
// (features.go, with matching.go, references.go and looks.go), of which network.go makes
// one number.
// Some lines must be kept (protect.go). Of the others, the runs are kept that are worth
// their tokens (select.go, choose.go). What is removed is told by annotations and
// markers (render.go), under a handle by which the original can be had back
// (recover.go).
//
// Focus cuts a text to a number of characters instead, and needs only the goal: what the
// text is, is detected (detect.go).
//
// It never summarises: kept lines are kept to the byte. The limits of a request hold to
// the line or the character, whatever the scores say.
package prune
