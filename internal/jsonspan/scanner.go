package jsonspan

import (
	"errors"
	"fmt"
	"io"
)

// Kind is the result of [Scanner.Next]: a token, or why there is none.
type Kind uint8

// The results of [Scanner.Next]. Those after Invalid are tokens.
const (
	// More means that all bytes fed so far have been read.
	More Kind = iota
	// Done means that the text is complete and valid.
	Done
	// Invalid means that the text is not JSON or exceeds a limit; Err says why.
	Invalid
	BeginObject
	EndObject
	BeginArray
	EndArray
	Key
	String
	Number
	True
	False
	Null
)

// DefaultMaxDepth is how many containers may be open at once if
// [Scanner.MaxDepth] is not set.
const DefaultMaxDepth = 1000

var (
	// ErrDepth means that a text is nested deeper than the limit.
	ErrDepth = errors.New("nested too deeply")
	// ErrFolded means that a key differs from a key of a path only in case or in
	// trailing null characters.
	ErrFolded = errors.New("key differs from a known key only in case or trailing null characters")
	// ErrDuplicate means that an object repeats a key of a path.
	ErrDuplicate = errors.New("repeated key")
	// ErrSyntax means that a text is not JSON.
	ErrSyntax = errors.New("invalid JSON")
)

// An Error says why a text is invalid, and at which byte. It wraps one of the errors
// of this package, or io.ErrUnexpectedEOF for a truncated text.
type Error struct {
	Offset int64
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%v at byte %d", e.Err, e.Offset) }
func (e *Error) Unwrap() error { return e.Err }

// A Scanner reads one JSON text, in any number of pieces. The zero value is ready
// to use:
//
//	s.Feed(piece)
//	for {
//		switch s.Next() {
//		case jsonspan.More:    // feed the next piece, or call Finish after the last
//		case jsonspan.String:  // Span, Depth and Chars describe it
//		case jsonspan.Done:    // the text was valid
//		case jsonspan.Invalid: // Err says why it was not
//		}
//	}
//
// Offsets count from the beginning of the text. The Scanner keeps no bytes: a
// caller that needs them keeps them. A token that spans several pieces is reported
// once, when it ends.
type Scanner struct {
	// MaxDepth limits how many containers may be open at once.
	// Default: [DefaultMaxDepth].
	MaxDepth int

	// SkipCounting disables counting the characters of strings. Reading is faster then,
	// and Chars is undefined.
	SkipCounting bool

	buf  []byte // current piece
	pos  int    // offset in buf of the next byte
	base int64  // offset of buf[0] in the text

	state    state
	finished bool
	pending  Kind   // a number that Gap ended
	stack    []byte // '{' or '[' for each open container
	err      error

	// State of the latest token.
	start, end int64
	depth      int
	chars      int // complete characters of a string before bound
	bound      int64
	literal    string // the rest of true, false or null that must follow
	kind       Kind   // the Kind of literal
	part       [maxChar]byte
	npart      int // length of part: a character that the next piece completes

	reportDepth  int
	reportLonger int64
	filtered     bool
}

type state uint8

const (
	wantValue    state = iota
	wantElement        // a value or ]
	wantFirstKey       // a key or }
	wantKey
	wantColon
	wantSeparator // a comma or the end of the container
	wantNothing   // the text is complete
	inString
	inKey
	inLiteral   // true, false, null
	inMinus     // a number, after -
	inZero      // after a leading 0
	inInteger   // after 1-9
	inPoint     // after .
	inFraction  // after . and a digit
	inExponent  // after e
	inExpSign   // after e and a sign
	inExpDigits // after e and a digit
)

// Reset prepares s for another text. It keeps the limits and removes the filter of Report.
func (s *Scanner) Reset() {
	*s = Scanner{MaxDepth: s.MaxDepth, SkipCounting: s.SkipCounting, stack: s.stack[:0]}
}

// Feed passes the next piece of the text, which must not change until Next returns
// [More], [Done] or [Invalid]. The previous piece must have been read completely.
func (s *Scanner) Feed(piece []byte) {
	s.base += int64(s.pos)
	s.buf, s.pos = piece, 0
}

// Gap announces n bytes that are transported with the text but are not part of it,
// such as the field names of an event stream. They count in offsets and act as
// white space: inside a string or a literal they are an error.
func (s *Scanner) Gap(n int) {
	s.Feed(nil)
	switch {
	case s.state.mayEndNumber():
		s.pending = s.endValue(0, Number)
	case s.state == inString || s.state == inKey || s.state == inLiteral || s.state.inNumber():
		s.fail(ErrSyntax, 0)
	}
	s.base += int64(n)
}

// Finish marks the end of the text. Next then ends with [Done] or [Invalid].
func (s *Scanner) Finish() { s.finished = true }

// Report limits what Next returns to tokens inside at most depth containers and, in
// deeper ones, to string values of more than longer bytes. All tokens are still
// validated.
func (s *Scanner) Report(depth, longer int) {
	s.reportDepth, s.reportLonger, s.filtered = depth, int64(longer), true
}

// ReportAll removes the filter of Report.
func (s *Scanner) ReportAll() { s.filtered = false }

// Span returns the offsets of the latest token. Those of a string or key include the
// quotes. If Next returned [More] inside a token, end is the end of the bytes fed
// so far.
func (s *Scanner) Span() (start, end int64) {
	if s.state >= inString {
		return s.start, s.base + int64(s.pos)
	}
	return s.start, s.end
}

// Depth returns how many containers are around the latest token. The brackets of a
// container are not inside it.
func (s *Scanner) Depth() int { return s.depth }

// Chars returns how many characters the latest string or key has. If it is
// unfinished, Chars counts those before Bound.
func (s *Scanner) Chars() int { return s.chars }

// Bound returns the offset up to which the characters of the latest string or key
// are complete: that of its closing quote or, if it is unfinished, an offset at or
// shortly before the end of the bytes fed so far.
func (s *Scanner) Bound() int64 { return s.bound }

// InString reports whether the bytes fed so far end inside a string value.
func (s *Scanner) InString() bool { return s.state == inString }

// InToken reports whether the bytes fed so far end inside a token.
func (s *Scanner) InToken() bool { return s.state >= inString }

// Err returns the error for which Next returned [Invalid].
func (s *Scanner) Err() error { return s.err }

// Next reads up to the next token that is to be reported.
func (s *Scanner) Next() Kind {
	if s.err != nil {
		return Invalid
	}
	if k := s.pending; k != More {
		s.pending = More
		if s.reports(k) {
			return k
		}
	}
	for s.pos < len(s.buf) {
		k := s.token()
		if k != More && (!s.filtered || s.reports(k)) {
			return k
		}
	}
	if s.finished {
		return s.finish()
	}
	return More
}

func (s *Scanner) reports(k Kind) bool {
	return !s.filtered || k == Invalid || s.depth <= s.reportDepth || k == String && s.end-s.start-2 > s.reportLonger
}

func (s *Scanner) finish() Kind {
	switch {
	case s.state == wantNothing:
		return Done
	case s.state.mayEndNumber() && len(s.stack) == 0:
		return s.endValue(s.pos, Number)
	}
	return s.fail(io.ErrUnexpectedEOF, s.pos)
}

// token reads until one token is complete or the piece ends.
func (s *Scanner) token() Kind {
	buf, i := s.buf, s.pos
	for i < len(buf) {
		c := buf[i]
		switch s.state {
		case inString, inKey:
			return s.readString(i)

		case wantValue, wantElement:
			switch c {
			case '"':
				s.begin(i)
				s.state, s.chars, s.npart = inString, 0, 0
				return s.readString(i + 1)
			case ' ', '\n', '\t', '\r':
				i++
				continue
			case '{':
				return s.push(i, '{', BeginObject, wantFirstKey)
			case '[':
				return s.push(i, '[', BeginArray, wantElement)
			case ']':
				if s.state == wantElement {
					return s.pop(i, EndArray)
				}
			case '-':
				s.begin(i)
				s.state = inMinus
				i++
				continue
			case '0':
				s.begin(i)
				s.state = inZero
				i++
				continue
			case '1', '2', '3', '4', '5', '6', '7', '8', '9':
				s.begin(i)
				s.state = inInteger
				i++
				continue
			case 't':
				s.begin(i)
				s.state, s.literal, s.kind = inLiteral, "rue", True
				i++
				continue
			case 'f':
				s.begin(i)
				s.state, s.literal, s.kind = inLiteral, "alse", False
				i++
				continue
			case 'n':
				s.begin(i)
				s.state, s.literal, s.kind = inLiteral, "ull", Null
				i++
				continue
			}
			return s.fail(ErrSyntax, i)

		case wantSeparator:
			switch c {
			case ',':
				s.state = s.afterComma()
				i++
				continue
			case ' ', '\n', '\t', '\r':
				i++
				continue
			case '}':
				if s.stack[len(s.stack)-1] == '{' {
					return s.pop(i, EndObject)
				}
			case ']':
				if s.stack[len(s.stack)-1] == '[' {
					return s.pop(i, EndArray)
				}
			}
			return s.fail(ErrSyntax, i)

		case wantFirstKey, wantKey:
			switch c {
			case '"':
				s.begin(i)
				s.state, s.chars, s.npart = inKey, 0, 0
				return s.readString(i + 1)
			case ' ', '\n', '\t', '\r':
				i++
				continue
			case '}':
				if s.state == wantFirstKey {
					return s.pop(i, EndObject)
				}
			}
			return s.fail(ErrSyntax, i)

		case wantColon:
			switch c {
			case ':':
				s.state = wantValue
				i++
				continue
			case ' ', '\n', '\t', '\r':
				i++
				continue
			}
			return s.fail(ErrSyntax, i)

		case wantNothing:
			switch c {
			case ' ', '\n', '\t', '\r':
				i++
				continue
			}
			return s.fail(ErrSyntax, i)

		case inLiteral:
			if c != s.literal[0] {
				return s.fail(ErrSyntax, i)
			}
			i++
			if s.literal = s.literal[1:]; s.literal == "" {
				return s.endValue(i, s.kind)
			}

		default:
			if s.state == inInteger || s.state == inFraction || s.state == inExpDigits {
				for i < len(buf) && '0' <= buf[i] && buf[i] <= '9' {
					i++
				}
				if i == len(buf) {
					break
				}
				c = buf[i]
			}
			switch next := s.state.nextInNumber(c); {
			case next != wantNothing:
				s.state = next
				i++
			case s.state.mayEndNumber():
				return s.endValue(i, Number)
			default:
				return s.fail(ErrSyntax, i)
			}
		}
	}
	s.pos = i
	return More
}

// nextInNumber returns the state of a number after c, or wantNothing if c cannot
// continue the number.
func (st state) nextInNumber(c byte) state {
	isDigit := '0' <= c && c <= '9'
	switch st {
	case inMinus:
		switch {
		case c == '0':
			return inZero
		case isDigit:
			return inInteger
		}
	case inZero, inInteger:
		switch {
		case isDigit && st == inInteger:
			return inInteger
		case c == '.':
			return inPoint
		case c == 'e' || c == 'E':
			return inExponent
		}
	case inPoint, inFraction:
		switch {
		case isDigit:
			return inFraction
		case st == inFraction && (c == 'e' || c == 'E'):
			return inExponent
		}
	case inExponent, inExpSign, inExpDigits:
		switch {
		case isDigit:
			return inExpDigits
		case st == inExponent && (c == '+' || c == '-'):
			return inExpSign
		}
	}
	return wantNothing
}

func (st state) inNumber() bool { return st >= inMinus }

// mayEndNumber reports whether a number may end in this state.
func (st state) mayEndNumber() bool {
	return st == inZero || st == inInteger || st == inFraction || st == inExpDigits
}

func (s *Scanner) begin(i int) {
	s.start = s.base + int64(i)
	s.depth = len(s.stack)
}

// endValue records that a value ends before buf[i]. It also reads the comma that most
// often follows, which saves a step of the state machine.
func (s *Scanner) endValue(i int, k Kind) Kind {
	s.end = s.base + int64(i)
	switch {
	case len(s.stack) == 0:
		s.state = wantNothing
	case i < len(s.buf) && s.buf[i] == ',':
		s.state = s.afterComma()
		i++
	default:
		s.state = wantSeparator
	}
	s.pos = i
	return k
}

func (s *Scanner) afterComma() state {
	if s.stack[len(s.stack)-1] == '{' {
		return wantKey
	}
	return wantValue
}

func (s *Scanner) push(i int, c byte, k Kind, next state) Kind {
	limit := s.MaxDepth
	if limit <= 0 {
		limit = DefaultMaxDepth
	}
	if len(s.stack) >= limit {
		return s.fail(ErrDepth, i)
	}
	s.begin(i)
	s.stack = append(s.stack, c)
	s.state, s.pos, s.end = next, i+1, s.start+1
	return k
}

func (s *Scanner) pop(i int, k Kind) Kind {
	s.stack = s.stack[:len(s.stack)-1]
	s.begin(i)
	return s.endValue(i+1, k)
}

// fail ends the scan at buf[i]. A negative i is an offset in an earlier piece.
func (s *Scanner) fail(err error, i int) Kind {
	s.pos = max(i, 0)
	s.err = &Error{Offset: s.base + int64(i), Err: err}
	return Invalid
}
