// Package jsonspan finds values in raw JSON and replaces them in place.
//
// It never builds a tree and never re-encodes: it says where values stand, and
// [Splice] copies every byte around them as it was. Number literals, key order,
// escapes, white space and members nobody asked about therefore cannot change.
//
// A [Scanner] makes one validating pass and works on whole buffers as well as
// on bytes as they arrive, in any division; its memory does not grow with the
// text. [Paths] is the pass for those who know where their values stand: Find in
// a text that is there as a whole, Watch in one that passes by.
//
// # What is promised
//
//   - A text is accepted if and only if encoding/json accepts it, but for two
//     documented limits: nesting deeper than MaxDepth (1,000 unless set) is
//     [ErrDepth], and a key that a path names and an object repeats is
//     [ErrDuplicate]. An accepted text has been read to its end.
//   - Keys are compared exactly, after their escapes: "result" and "resul\u0074"
//     are the same key, "Result" is another one.
//   - A character is a Unicode code point of the decoded string. An escaped
//     surrogate pair is one. A lone surrogate is one, and so is each byte that
//     is not part of valid UTF-8: where encoding/json would put U+FFFD. No
//     offset given out for a character ever lies inside one.
//   - No allocation per token or per byte, no reflection, no recursion but as deep
//     as a path is long. Time is linear in the text.
//
// A text is read only once, front to back, so what a [Scanner] reports before it
// meets an error is no proof that the rest is well-formed. Callers that must not
// act on a broken text wait for [Done].
package jsonspan
