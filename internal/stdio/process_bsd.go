//go:build unix && !linux

package stdio

// closeFilesOnExec keeps child processes from inheriting open files other than their standard
// streams. Go sets close-on-exec on files that it opens, but not on those that Caddy inherited.
func closeFilesOnExec() { closeFilesOnExecIn("/dev/fd") }
