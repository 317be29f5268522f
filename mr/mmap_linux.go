package mr

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const mapHugeTLB = unix.MAP_HUGETLB

func mapMemory(size, flags int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
}

func unmapMemory(mem []byte) error { return unix.Munmap(mem) }

func hugePageSize() (int, error) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		var kb int
		if n, _ := fmt.Sscanf(line, "Hugepagesize: %d kB", &kb); n == 1 {
			return kb << 10, nil
		}
	}
	return 0, unix.EOPNOTSUPP
}

// memlock describes the limit that a failed registration met.
func memlock() string {
	var r unix.Rlimit
	if mayLockAll() {
		return unlimited
	}
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return "unknown"
	}
	if r.Cur == unix.RLIM_INFINITY {
		return unlimited
	}
	return fmt.Sprintf("%d bytes", r.Cur)
}

// mayLockAll reports whether CAP_IPC_LOCK lifts the limit, as it does for root.
func mayLockAll() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
