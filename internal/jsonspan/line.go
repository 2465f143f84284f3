package jsonspan

import "bytes"

// AppendLine appends a JSON text to dst as one line, without a line break at the
// end. Line breaks in valid JSON are always between tokens, so they become spaces.
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
