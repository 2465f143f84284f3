//go:build unix && !linux

package process

import "errors"

// RaiseOpenFiles is for Linux only.
func RaiseOpenFiles(int) (int, error) { return 0, errors.ErrUnsupported }
