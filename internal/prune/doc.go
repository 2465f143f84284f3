// Package prune removes the lines of a text that are least relevant to a goal.
//
// It reads a text twice: for how its lines belong together (outline.go, with a file for each
// source; syntax.go), and for features that tell how relevant they are (features.go, with
// matching.go, references.go and looks.go), which network.go turns into one number per line.
// Some lines must be kept (protect.go). Of the others, the runs worth their tokens are kept
// (select.go, choose.go). Annotations and markers describe what was removed (render.go), with a
// handle by which the original can be recovered (recover.go).
//
// Focus shortens a text to a number of characters instead, and needs only the goal: the source is
// detected (detect.go).
//
// The package never summarizes: kept lines are kept to the byte. The limits of a request are
// exact, to the line or character, whatever the scores are.
package prune
