package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
