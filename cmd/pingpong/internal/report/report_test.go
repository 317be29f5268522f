package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o666))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

func setup(change func(*Setup)) *Setup {
	s := &Setup{Side: "client", Type: "rc", Operation: "send", Device: "rxe0", Driver: "rxe", Software: true,
		Port: 1, MTU: 1024, QueuePairs: 1, Depth: 1, SignalEvery: 1, RxDepth: 500, Wait: "polling"}
	change(s)
	return s
}

// counted is a measurement of a thousand iterations that took 101, 102 and so on microseconds.
func counted(size uint32, ways int) Count {
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for i := range 1000 {
		_ = h.RecordValue(int64(101+i) * 1000)
	}
	return Count{Size: size, Iterations: 1000, Complete: true, Ways: ways, Elapsed: 508800 * time.Microsecond,
		CPU: 412345 * time.Microsecond, Times: h}
}

func TestText(t *testing.T) {
	peer := 10 * time.Millisecond
	for name, c := range map[string]struct {
		change func(*Setup)
		counts []Count
	}{
		"rc":    {func(*Setup) {}, []Count{counted(4096, 2)}},
		"rping": {func(s *Setup) { s.Operation, s.RxDepth, s.Wait, s.Checked = "rping", 1, "events", true }, []Count{counted(64, 2)}},
		"hardware": {func(s *Setup) { s.Device, s.Driver, s.Software, s.Checked = "mlx5_0", "mlx5_core", false, true }, func() []Count {
			c := counted(64, 2)
			c.Inline = true
			return []Count{c}
		}()},
		"ud": {func(s *Setup) { s.Type, s.Wait, s.SL, s.TrafficClass, s.FlowLabel = "ud", "events", 3, 0x68, 0xabc }, func() []Count {
			c := counted(1024, 2)
			c.Iterations, c.Lost = 998, 2
			return []Count{c}
		}()},
		"srq": {func(s *Setup) {
			s.Type, s.QueuePairs, s.Depth, s.Bidirectional, s.Wait, s.SpinUsec, s.HoldUsec = "srq", 16, 4, true, "mixed", 50, 200
		}, []Count{counted(4096, 2)}},
		"write":    {func(s *Setup) { s.Operation, s.Depth, s.SignalEvery, s.Checked = "write", 64, 16, true }, []Count{counted(65536, 1)}},
		"uc-write": {func(s *Setup) { s.Operation, s.Type = "write", "uc" }, []Count{counted(1, 1)}},
		"read-by-both": {func(s *Setup) { s.Operation, s.Bidirectional = "read", true }, func() []Count {
			c := counted(4096, 1)
			c.PeerCPU = &peer
			return []Count{c}
		}()},
		"passive": {func(s *Setup) { s.Operation, s.Side, s.Checked = "fetch-add", "server", true }, func() []Count {
			c := counted(8, 1)
			c.Times = nil
			return []Count{c}
		}()},
		"sweep": {func(s *Setup) { s.Operation, s.Depth = "write-imm", 2 }, func() []Count {
			a, b := counted(1, 2), counted(1<<20, 2)
			a.Inline, a.PeerCPU, b.Times = true, &peer, nil
			return []Count{a, b}
		}()},
		"nothing": {func(*Setup) {}, []Count{{Size: 4096, Ways: 2}}},
		"much":    {func(*Setup) {}, []Count{{Size: 1 << 31, Iterations: math.MaxUint32, Ways: 2, Complete: true, Elapsed: time.Second}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := Report{Setup: setup(c.change)}
			for _, one := range c.counts {
				r.Results = append(r.Results, one.Result())
			}
			var out bytes.Buffer
			require.NoError(t, r.WriteText(&out))
			golden(t, name+".txt", out.String())
		})
	}
}

func TestJSON(t *testing.T) {
	text := "after 3 of 1000 round trips: interrupt"
	for name, r := range map[string]Report{
		"result":  {Program: "pingpong", Format: 1, Setup: setup(func(*Setup) {}), Results: []Result{counted(4096, 2).Result()}},
		"failure": {Program: "pingpong", Format: 1, Interrupted: true, Error: &text},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, r.WriteJSON(&out))
			assert.True(t, json.Valid(out.Bytes()))
			golden(t, name+".json", out.String())
		})
	}
	// A run in which nothing was done has no rates that JSON could not say.
	r := Report{Setup: setup(func(*Setup) {}), Results: []Result{Count{Ways: 2, Size: 1}.Result()}}
	require.NoError(t, r.WriteJSON(&bytes.Buffer{}))
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputFails(t *testing.T) {
	r := Report{Setup: setup(func(*Setup) {}), Results: []Result{counted(1, 2).Result()}}
	assert.ErrorContains(t, r.WriteText(fullDisk{}), "no space left")
	assert.ErrorContains(t, r.WriteJSON(fullDisk{}), "no space left")
}
