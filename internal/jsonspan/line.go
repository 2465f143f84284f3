package jsonspan

import "bytes"

// AppendLine appends a JSON text as one line, without an end. Line breaks in it stand
// between tokens, as they cannot stand within one, and a space is as good.
func AppendLine(dst, text []byte) []byte {
	start := len(dst)
	dst = append(dst, text...)
	for _, lineBreak := range []byte("\r\n") {
		for line := dst[start:]; ; {
			i := bytes.IndexByte(line, lineBreak)
			if i < 0 {
				break
			}
			line[i] = ' '
			line = line[i+1:]
		}
	}
	return dst
}
