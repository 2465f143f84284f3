package process

import (
	"errors"
	"syscall"
)

// RaiseOpenFiles raises the limit of open files for this process and its children, to n if
// allowed, and returns the new limit.
func RaiseOpenFiles(n int) (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	wanted := syscall.Rlimit{Cur: uint64(n), Max: max(limit.Max, uint64(n))}
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &wanted)
	if errors.Is(err, syscall.EPERM) { // only the superuser raises the hard limit
		wanted = syscall.Rlimit{Cur: min(uint64(n), limit.Max), Max: limit.Max}
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &wanted)
	}
	return int(wanted.Cur), err
}
