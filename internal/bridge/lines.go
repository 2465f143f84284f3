package bridge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// A line is a message or an error.
type line struct {
	text []byte
	err  error // errTooLong, or the end of the input
}

var errTooLong = errors.New("message too long")

// readLines sends the lines of in that are not blank, then its final error, until done is closed.
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

// readLine reads a line. A line that is too long is read to its end, but not kept.
func readLine(src *bufio.Reader) (text []byte, err error) {
	for tooLong := false; ; {
		piece, err := src.ReadSlice('\n')
		tooLong = tooLong || len(text)+len(piece) > maxLine+len("\r\n")
		if tooLong {
			text = nil
		} else {
			text = append(text, piece...)
		}
		switch {
		case err == bufio.ErrBufferFull:
		case err == nil && tooLong:
			return nil, errTooLong
		case len(text) > 0:
			return text, nil // the next read returns the error
		default:
			return nil, err
		}
	}
}
