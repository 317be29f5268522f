package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// little is the limit of old kernels. Most buffers do not go into it, and with hardware, whose
// queues are in the program's memory too, not even those of a queue pair.
const little = 64 << 10

// memlock compares the limit of locked memory with what registration takes. The kernel asks
// for CAP_IPC_LOCK of the first user namespace.
func (e *Env) memlock() []Check {
	const remedy = "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (containers), " +
		"memlock in /etc/security/limits.conf; or give CAP_IPC_LOCK"
	if caps, err := strconv.ParseUint(e.field("CapEff:", "proc/self/status"), 16, 64); err == nil && caps>>14&1 == 1 {
		if slices.Equal(strings.Fields(e.read("proc/self/uid_map")), []string{"0", "0", "4294967295"}) {
			return []Check{ok("no limit: this process has CAP_IPC_LOCK")}
		}
	}
	fields := strings.Fields(e.field("Max locked memory", "proc/self/limits"))
	if len(fields) == 0 {
		return []Check{warning("mount /proc", "the limit cannot be read from /proc/self/limits")}
	}
	if fields[0] == "unlimited" {
		return []Check{ok("no limit")}
	}
	limit, err := strconv.ParseUint(fields[0], 10, 64)
	switch {
	case err != nil:
		return []Check{warning("", "the limit %q makes no sense", fields[0])}
	case limit <= little:
		return []Check{failed(remedy, "%s can be locked, which is too little for most buffers, and with hardware for the queues of a queue pair", size(limit))}
	}
	return []Check{warning(remedy, "%s can be locked: all memory regions and queues of this process together", size(limit))}
}

// size is a number of bytes in words.
func size(n uint64) string {
	for _, unit := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<unit.shift {
			return strconv.FormatFloat(float64(n)/float64(uint64(1)<<unit.shift), 'f', -1, 64) + " " + unit.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

func (e *Env) hugePages() []Check {
	total := e.field("HugePages_Total:", "proc/meminfo")
	free := e.field("HugePages_Free:", "proc/meminfo")
	page := e.field("Hugepagesize:", "proc/meminfo")
	switch {
	case e.read("proc/meminfo") == "": // without /proc, as is told above
		return nil
	case total == "":
		return []Check{ok("this kernel has none")}
	case total == "0":
		return []Check{ok("none are reserved; only buffers that ask for them need them (sysctl vm.nr_hugepages=N)")}
	case free == "0":
		return []Check{warning("reserve more: sysctl vm.nr_hugepages=N", "all %s of %s are in use: buffers that ask for huge pages get none", total, page)}
	}
	return []Check{ok("%s of %s of %s are free", free, total, page)}
}

// numa compares the node of each device with where this process may run.
func (e *Env) numa() (found []Check) {
	allowed, here := cpus(e.field("Cpus_allowed_list:", "proc/self/status"))
	var near []string
	for _, d := range e.Devices {
		if d.NUMANode < 0 {
			continue
		}
		node := fmt.Sprintf("node%d", d.NUMANode)
		local, read := cpus(e.read("sys/devices/system/node", node, "cpulist"))
		if !here || !read {
			continue
		}
		common := false
		for cpu := range local {
			common = common || allowed[cpu]
		}
		if !common {
			found = append(found, warning(fmt.Sprintf("numactl --cpunodebind=%d --membind=%d, or taskset", d.NUMANode, d.NUMANode),
				"%s is on NUMA node %d, and this process may run on no CPU of it", d.Name, d.NUMANode))
			continue
		}
		near = append(near, fmt.Sprintf("%s on node %d", d.Name, d.NUMANode))
	}
	if len(found) == 0 && len(near) > 0 {
		found = append(found, ok("this process may run beside each device: %s", strings.Join(near, ", ")))
	}
	return found
}

// cpus reads a list of CPUs: 0-3,8.
func cpus(list string) (set map[int]bool, ok bool) {
	set = map[int]bool{}
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || to-from > 1<<16 {
			return nil, false
		}
		for n := from; n <= to; n++ {
			set[n] = true
		}
	}
	return set, true
}
