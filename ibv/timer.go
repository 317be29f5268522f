package ibv

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Infinite, as an ack timeout, waits for ever: a lost packet is then never sent
// again and its operation never completes.
const Infinite time.Duration = math.MaxInt64

// The ack timeout is a 5-bit code c that stands for 4.096 µs times 2 to the c;
// code 0 means no timeout.
const (
	ackTimeoutUnit = 4096 * time.Nanosecond
	minAckTimeout  = ackTimeoutUnit << 1
	maxAckTimeout  = ackTimeoutUnit << 31
)

// encodeAckTimeout returns the code of the shortest timeout that is not below
// d. Zero is refused, since the verbs take it to mean for ever.
func encodeAckTimeout(d time.Duration) (uint8, error) {
	switch {
	case d == Infinite:
		return 0, nil
	case d == 0:
		return 0, fmt.Errorf("ack timeout is zero: give a time from %v to %v, or Infinite to wait for ever",
			minAckTimeout, maxAckTimeout)
	case d < 0:
		return 0, fmt.Errorf("ack timeout %v is negative", d)
	case d > maxAckTimeout:
		return 0, fmt.Errorf("ack timeout %v is above the longest, %v: use Infinite to wait for ever", d, maxAckTimeout)
	case d <= minAckTimeout:
		return 1, nil
	}
	units := uint64((d + ackTimeoutUnit - 1) / ackTimeoutUnit)
	return uint8(bits.Len64(units - 1)), nil
}

// decodeAckTimeout returns the time of a code; of its bits only five count.
func decodeAckTimeout(code uint8) time.Duration {
	code &= 31
	if code == 0 {
		return Infinite
	}
	return ackTimeoutUnit << code
}

// rnrTimers are the times that a minimum RNR timer can have, by code, in units
// of 10 µs. Code 0 is the longest, the others ascend.
var rnrTimers = [32]time.Duration{
	65536,
	1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256,
	384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

const rnrTimerUnit = 10 * time.Microsecond

// encodeRNRTimer returns the code of the shortest timer that is not below d.
// Zero is refused: the verbs' code 0 is the longest timer.
func encodeRNRTimer(d time.Duration) (uint8, error) {
	longest := decodeRNRTimer(0)
	switch {
	case d == 0:
		return 0, fmt.Errorf("minimum RNR timer is zero: give a time from %v to %v", rnrTimerUnit, longest)
	case d < 0:
		return 0, fmt.Errorf("minimum RNR timer %v is negative", d)
	case d > longest:
		return 0, fmt.Errorf("minimum RNR timer %v is above the longest, %v", d, longest)
	}
	for code := uint8(1); code < 32; code++ {
		if decodeRNRTimer(code) >= d {
			return code, nil
		}
	}
	return 0, nil
}

// decodeRNRTimer returns the time of a code; of its bits only five count.
func decodeRNRTimer(code uint8) time.Duration {
	return rnrTimers[code&31] * rnrTimerUnit
}
