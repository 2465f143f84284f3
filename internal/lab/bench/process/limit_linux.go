package process

import (
	"errors"
	"syscall"
)

// RaiseOpenFiles raises how many files this process and those it starts may have open,
// to n if that is allowed, and returns how many it is now.
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
