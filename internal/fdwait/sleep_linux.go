package fdwait

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleep sleeps in the kernel until fd can be read, or for d. It may return early: what there
// is is looked for anyway.
func sleep(fd uintptr, d time.Duration) {
	limit := unix.NsecToTimespec(d.Nanoseconds())
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &limit, nil)
}
