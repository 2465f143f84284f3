package bridge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// A line is a message, or the reason why there is none.
type line struct {
	text []byte
	err  error // errTooLong, or the end of the input
}

var errTooLong = errors.New("message too long")

// readLines sends the lines of in that are not blank, then the error that ends it, until
// done is closed.
func readLines(in io.Reader, lines chan<- line, done <-chan struct{}) {
	src := bufio.NewReaderSize(in, 64<<10)
	for {
		text, err := readLine(src)
		text = bytes.TrimSpace(text)
		if len(text) == 0 && err == nil {
			continue
		}
		select {
		case lines <- line{text, err}:
		case <-done:
			return
		}
		if err != nil && err != errTooLong {
			return
		}
	}
}

// readLine reads a line. It reads one that is too long to its end, but does not keep it.
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
		case len(text) > 0:
			return text, nil // an error comes back with the next read
		default:
			return nil, err
		}
	}
}
