//go:build !linux

package fdwait

import "time"

// sleep is for Linux, where the devices are.
func sleep(uintptr, time.Duration) {}
