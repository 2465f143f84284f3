//go:build !linux

package stdio

// strays are processes that must end with the child. On this system there are none: processes that
// have left the process group of a child cannot be found.
type strays struct{}

func (p *process) findPipes()  {}
func (p *process) markStrays() {}
func (p *process) killStrays() {}
