package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

func TestResult(t *testing.T) {
	r := result{
		port: "port 1 of rxe0", mtu: ibv.MTU1024, size: 4096, iters: 1000, rxDepth: 500, software: true,
		elapsed: 508800 * time.Microsecond, cpu: 412345 * time.Microsecond,
	}
	var out bytes.Buffer
	require.NoError(t, r.write(&out))
	assert.Equal(t, `measured: round trips of 4096 bytes each way over RC from port 1 of rxe0, path MTU 1024
          one SEND at a time, signaled, not inline; receive queue of 500; busy polling
          412.35 usec/iter of CPU time on this side
software device: not a measure of RDMA hardware
8192000 bytes in 0.51 seconds = 128.81 Mbit/sec
1000 iters in 0.51 seconds = 508.80 usec/iter
`, out.String())

	out.Reset()
	r.software, r.inline, r.check = false, true, true
	require.NoError(t, r.write(&out))
	assert.NotContains(t, out.String(), "software")
	assert.Contains(t, out.String(), "signaled, inline;")
	assert.Contains(t, out.String(), "on this side, the checking of messages included\n8192000 bytes")

	out.Reset()
	r.events = true
	require.NoError(t, r.write(&out))
	assert.Contains(t, out.String(), "receive queue of 500; sleeping until an event\n")

	out.Reset()
	r.spin = 50 * time.Microsecond
	require.NoError(t, r.write(&out))
	assert.Contains(t, out.String(), "receive queue of 500; polling for 50µs, then sleeping until an event\n")

	out.Reset()
	r.size, r.iters = 1<<31, math.MaxUint32
	require.NoError(t, r.write(&out))
	assert.Contains(t, out.String(), "\n18446744069414584320 bytes in ")
}

func TestAvailableMemory(t *testing.T) {
	meminfo := filepath.Join(t.TempDir(), "meminfo")
	assert.Equal(t, uint64(math.MaxUint64), availableMemory(meminfo), "no such file")
	require.NoError(t, os.WriteFile(meminfo, []byte("MemTotal:  4006904 kB\nMemFree: 100 kB\n"), 0o666))
	assert.Equal(t, uint64(math.MaxUint64), availableMemory(meminfo), "a kernel that does not say")
	require.NoError(t, os.WriteFile(meminfo, []byte("MemTotal:  4006904 kB\nMemFree: 100 kB\nMemAvailable:    3807052 kB\nBuffers: 1 kB\n"), 0o666))
	assert.Equal(t, uint64(3807052<<10), availableMemory(meminfo))
}

func TestCPUTimeAdvances(t *testing.T) {
	start := cpuTime()
	for deadline := time.Now().Add(5 * time.Second); cpuTime() == start; {
		require.True(t, time.Now().Before(deadline), "five seconds of work took no CPU time")
	}
}
