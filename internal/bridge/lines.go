package bridge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// A line is a message, or why there is none.
type line struct {
	text []byte
	err  error // errTooLong, or the end
}

var errTooLong = errors.New("message too long")

// readLines sends the lines of in that are not blank, and then its end, until done.
func readLines(in io.Reader, lines chan<- line, done <-chan struct{}) {
	src := bufio.NewReaderSize(in, 64<<10)
	for {
		text, err := readLine(src)
		if text = bytes.TrimSpace(text); len(text) > 0 || errors.Is(err, errTooLong) {
			var next line
			if next.text = text; errors.Is(err, errTooLong) {
				next, err = line{err: errTooLong}, nil
			}
			select {
			case lines <- next:
			case <-done:
				return
			}
		}
		if err != nil {
			select {
			case lines <- line{err: err}:
			case <-done:
			}
			return
		}
	}
}

// readLine reads up to the end of a line. One that is too long it reads as well, but
// does not keep.
func readLine(src *bufio.Reader) (text []byte, err error) {
	for tooLong := false; ; {
		piece, err := src.ReadSlice('\n')
		if tooLong = tooLong || len(text)+len(piece) > maxLine+len("\r\n"); tooLong {
			text = nil
		} else {
			text = append(text, piece...)
		}
		switch {
		case err == bufio.ErrBufferFull:
		case err == nil && tooLong:
			return nil, errTooLong
		default:
			return text, err
		}
	}
}
