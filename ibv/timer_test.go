package ibv

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// timers has what the two kinds of timer have in common for the tests.
var timers = map[string]struct {
	encode            func(time.Duration) (uint8, error)
	decode            func(uint8) time.Duration
	shortest, longest time.Duration
	ascending         []uint8 // the codes of finite times, the shortest first
}{
	"ack timeout": {encodeAckTimeout, decodeAckTimeout, 8192, 8_796_093_022_208, codes(1, 31)},
	"RNR timer":   {encodeRNRTimer, decodeRNRTimer, 10_000, 655_360_000, append(codes(1, 31), 0)},
}

func codes(from, to uint8) (list []uint8) {
	for c := from; c <= to; c++ {
		list = append(list, c)
	}
	return list
}

func TestTimerRoundTrip(t *testing.T) {
	for name, timer := range timers {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, timer.shortest, timer.decode(timer.ascending[0]))
			assert.Equal(t, timer.longest, timer.decode(timer.ascending[len(timer.ascending)-1]))
			before := time.Duration(0)
			for _, code := range timer.ascending {
				d := timer.decode(code)
				require.Greater(t, d, before)
				for _, exact := range []time.Duration{d, d - 1, before + 1} { // rounded up
					got, err := timer.encode(exact)
					require.NoError(t, err)
					assert.Equal(t, code, got, exact)
				}
				assert.Equal(t, d, timer.decode(code|0xe0), "upper bits do not count")
				before = d
			}
		})
	}
}

func TestTimerRefused(t *testing.T) {
	for name, timer := range timers {
		for d, why := range map[time.Duration]string{
			0:                 "is zero: give a time from",
			-1:                "is negative",
			math.MinInt64:     "is negative",
			timer.longest + 1: "is above the longest",
			Infinite - 1:      "is above the longest",
		} {
			_, err := timer.encode(d)
			require.ErrorContains(t, err, why, "%s %v", name, d)
		}
	}
}

func TestTimerKnownCodes(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: Infinite, 1: 8192, 14: 67_108_864, 18: 1_073_741_824, 31: 8_796_093_022_208,
	} {
		assert.Equal(t, want, decodeAckTimeout(code), code)
	}
	code, err := encodeAckTimeout(Infinite)
	require.NoError(t, err)
	assert.Zero(t, code)

	for code, ms := range []string{
		"655.36", "0.01", "0.02", "0.03", "0.04", "0.06", "0.08", "0.12", "0.16", "0.24", "0.32", "0.48", "0.64", "0.96",
		"1.28", "1.92", "2.56", "3.84", "5.12", "7.68", "10.24", "15.36", "20.48", "30.72", "40.96", "61.44", "81.92",
		"122.88", "163.84", "245.76", "327.68", "491.52",
	} {
		want, err := time.ParseDuration(ms + "ms")
		require.NoError(t, err)
		assert.Equal(t, want, decodeRNRTimer(uint8(code)), code)
	}
	_, err = encodeRNRTimer(Infinite)
	assert.ErrorContains(t, err, "above the longest, 655.36ms")
}

func FuzzTimer(f *testing.F) {
	for _, d := range []time.Duration{0, 1, 10_000, 10_001, time.Second, time.Hour, Infinite} {
		f.Add(int64(d))
	}
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n)
		for name, timer := range timers {
			code, err := timer.encode(d)
			waitsForEver := d == Infinite && timer.decode(0) == Infinite
			if d <= 0 || d > timer.longest && !waitsForEver {
				require.Error(t, err, name)
				continue
			}
			require.NoError(t, err, name)
			got := timer.decode(code)
			require.GreaterOrEqual(t, got, d, "rounded up")
			for other := range uint8(32) {
				if candidate := timer.decode(other); candidate >= d {
					require.LessOrEqual(t, got, candidate, "to the next")
				}
			}
		}
	})
}
