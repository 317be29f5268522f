package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func usec(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// cpuTime returns the user and system time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const procMeminfo = "/proc/meminfo"

// availableMemory returns the bytes that can be had without swapping, which locked
// memory cannot do; all that there are where it is not known.
func availableMemory(meminfo string) uint64 {
	text, err := os.ReadFile(meminfo)
	if err != nil {
		return math.MaxUint64
	}
	for line := range strings.Lines(string(text)) {
		var kb uint64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return math.MaxUint64
}

// driver returns the name of a device's driver: that of its hardware, or what a software
// device calls itself; empty if neither is known.
func driver(device string) string {
	dir := filepath.Join("/sys/class/infiniband", device)
	if link, err := os.Readlink(filepath.Join(dir, "device/driver")); err == nil {
		return filepath.Base(link)
	}
	text, err := os.ReadFile(filepath.Join(dir, "node_desc"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
