//go:build !linux

package park

// poller watches no connections on this platform. Each response has a goroutine for that.
var poller noPoller

type noPoller struct{}

func (noPoller) add(*Response) bool { return false }

func (noPoller) remove(*Response) {}
