package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
)

// sweep is a report of sizes that double, whose latency grows with them.
func sweep(depth, sizes int) *report.Report {
	r := &report.Report{Setup: &report.Setup{Side: "client", Type: "rc", Operation: "send", Device: "rxe0", Driver: "rxe",
		Software: true, Port: 1, MTU: 1024, QueuePairs: 1, Depth: depth, SignalEvery: 1, RxDepth: 500, Wait: "polling"}}
	for i := range sizes {
		us := 20 + float64(int(1)<<i)/300
		r.Results = append(r.Results, report.Result{Size: 1 << i, Iterations: 1000, Complete: true, MiB: float64(int(1)<<i) / us,
			Latency: &report.Latency{Samples: 1000, Min: us, Mean: us, P50: us, P90: 1.3 * us, P99: 2 * us, P999: 4 * us, Max: 21 * us}})
	}
	r.Describe()
	return r
}

// texts draws a report and returns the words of the picture, which must be well formed.
func texts(t *testing.T, r *report.Report) string {
	t.Helper()
	var svg bytes.Buffer
	require.NoError(t, Write(&svg, r))
	var all strings.Builder
	for d := xml.NewDecoder(&svg); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		require.NoError(t, err)
		if text, ok := token.(xml.CharData); ok {
			all.Write(text)
			all.WriteByte('\n')
		}
	}
}

func TestLatency(t *testing.T) {
	words := texts(t, sweep(1, 21))
	for _, want := range []string{
		"latency [µs]", "size of a message or operation [bytes]", "p50", "p90", "p99", "p99.9", "max",
		"1K", "1M", "round trips of each size each way by SEND over RC", "not a measure of RDMA hardware",
	} {
		assert.Contains(t, strings.ReplaceAll(words, "\n", " "), want)
	}
}

func TestLegendIsBesideTheCurves(t *testing.T) {
	for _, r := range []*report.Report{sweep(1, 1), sweep(1, 21), sweep(16, 21)} {
		p, legend, err := figure(r)
		require.NoError(t, err)
		axes, beside := besideAxes(p, draw.New(vgsvg.New(width, height)))
		assert.Greater(t, beside.Min.X, p.DataCanvas(axes).Max.X)
		assert.Equal(t, width, beside.Max.X)
		assert.Greater(t, beside.Size().X, legend.ThumbnailWidth+legend.TextStyle.Width(" throughput"))
	}
}

func TestDecades(t *testing.T) {
	labels := func(least, most float64) (all []string) {
		for _, tick := range (decades{}).Ticks(least, most) {
			if tick.Label != "" {
				all = append(all, tick.Label)
			}
		}
		return all
	}
	assert.Equal(t, []string{"0.05", "0.1", "0.2", "0.5", "1", "2"}, labels(0.05, 2))
	assert.Equal(t, []string{"200000", "500000", "1000000", "2000000"}, labels(2e5, 2e6))
}

func TestThroughput(t *testing.T) {
	r := sweep(16, 1) // one size is a point
	assert.Contains(t, texts(t, r), "throughput [MiB/s]")

	// The passive side of a write takes no times.
	r = sweep(1, 3)
	for i := range r.Results {
		r.Results[i].Latency = nil
	}
	assert.Contains(t, texts(t, r), "throughput [MiB/s]")
}

func TestNothingToDraw(t *testing.T) {
	r := sweep(1, 1)
	r.Results[0].Latency, r.Results[0].MiB = nil, 0
	assert.ErrorContains(t, Write(io.Discard, r), "nothing was measured")
}

func TestAxisEnds(t *testing.T) {
	for _, c := range []struct{ v, below, above float64 }{{1, 1, 1}, {1.5, 1, 2}, {2, 2, 2}, {30, 20, 50}, {0.7, 0.5, 1}, {999, 500, 1000}} {
		assert.InEpsilon(t, c.below, below(c.v), 1e-9, "%v", c.v)
		assert.InEpsilon(t, c.above, above(c.v), 1e-9, "%v", c.v)
	}
}
