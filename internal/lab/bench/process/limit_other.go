//go:build unix && !linux

package process

import "errors"

// RaiseOpenFiles is only supported on Linux.
func RaiseOpenFiles(int) (int, error) { return 0, errors.ErrUnsupported }
