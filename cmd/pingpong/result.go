package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/ibv"
)

// result is what a run took, and what it ran with.
type result struct {
	port     string
	mtu      ibv.MTU
	size     uint32
	iters    uint32
	rxDepth  uint32
	inline   bool
	events   bool
	spin     time.Duration
	check    bool
	software bool
	elapsed  time.Duration // from the first post, or from the wait for it, to the last completion
	cpu      time.Duration // of this process meanwhile
}

// write prints what was measured and then, last, the two lines of ibv_rc_pingpong.
func (r result) write(w io.Writer) error {
	inline, check, software := "not inline", "", ""
	if r.inline {
		inline = "inline"
	}
	if r.check {
		check = ", the checking of messages included"
	}
	if r.software {
		software = "software device: not a measure of RDMA hardware\n"
	}
	waiting := "busy polling"
	if r.events {
		waiting = "sleeping until an event"
	}
	if r.spin > 0 {
		waiting = fmt.Sprintf("polling for %v, then %s", r.spin, waiting)
	}
	iters, bytes := float64(r.iters), uint64(r.size)*uint64(r.iters)*2
	_, err := fmt.Fprintf(w, `measured: round trips of %d bytes each way over RC from %s, path MTU %v
          one SEND at a time, signaled, %s; receive queue of %d; %s
          %.2f usec/iter of CPU time on this side%s
%s%d bytes in %.2f seconds = %.2f Mbit/sec
%d iters in %.2f seconds = %.2f usec/iter
`,
		r.size, r.port, r.mtu, inline, r.rxDepth, waiting, usec(r.cpu)/iters, check, software,
		bytes, r.elapsed.Seconds(), float64(bytes)*8/usec(r.elapsed),
		r.iters, r.elapsed.Seconds(), usec(r.elapsed)/iters)
	return err
}

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
