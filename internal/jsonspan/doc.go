// Package jsonspan finds values in raw JSON and replaces them in place.
//
// It never builds a tree and never re-encodes. It reports the offsets of values,
// and [Splice] copies all bytes around them unchanged. Number literals, key order,
// escapes, white space and unknown members therefore cannot change.
//
// A [Scanner] validates in one pass. It reads whole buffers as well as bytes as
// they arrive, in pieces of any size, and its memory does not grow with the text.
// [Paths] selects values by the keys that lead to them: Find in a complete text,
// Watch in a text that arrives in pieces.
//
// # Guarantees
//
//   - A text is accepted if and only if encoding/json accepts it, with two
//     exceptions: nesting deeper than MaxDepth (1,000 by default) is [ErrDepth],
//     and an object that repeats a key of a path is [ErrDuplicate]. An accepted
//     text has been read to its end.
//   - Keys are compared exactly, after decoding: "result" and "resul\u0074" are the
//     same key, "Result" is a different one.
//   - A character is a Unicode code point of the decoded string. An escaped
//     surrogate pair is one character. So is a lone surrogate, and so is each byte
//     that is not part of valid UTF-8: encoding/json decodes these to U+FFFD. A
//     reported character offset never lies inside a character.
//   - No allocation per token or per byte, no reflection. Recursion is only as deep
//     as the longest path. Time is linear in the text.
//
// A text is read once, from front to back. What a [Scanner] reports before an
// error does not prove that the rest is well-formed. Callers that must not act on
// an invalid text wait for [Done].
package jsonspan
