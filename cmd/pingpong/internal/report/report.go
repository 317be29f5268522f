// Package report holds what pingpong has measured, and writes it as text and as JSON.
package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is one run: what it was made with and what came of it. Its JSON form is
// described in FORMATS.md.
type Report struct {
	Program     string   `json:"program"`
	Format      int      `json:"format"`
	Setup       *Setup   `json:"setup"`    // null if it failed before the device was open
	Boundary    string   `json:"boundary"` // in words: what was measured, and by what it is limited
	Results     []Result `json:"results"`
	Interrupted bool     `json:"interrupted"`
	Error       *string  `json:"error"`
}

// Setup is what all results of a run have in common.
type Setup struct {
	Side          string  `json:"side"`      // client or server
	Type          string  `json:"type"`      // rc, uc, ud or srq
	Operation     string  `json:"operation"` // as --op has it, or rping
	Device        string  `json:"device"`
	Driver        string  `json:"driver"` // empty if not known
	Software      bool    `json:"software"`
	Port          uint8   `json:"port"`
	MTU           int     `json:"mtu"` // bytes; of UD the port's
	QueuePairs    int     `json:"queue_pairs"`
	Depth         int     `json:"depth"`
	SignalEvery   int     `json:"signal_every"`
	RxDepth       uint32  `json:"rx_depth"`
	Bidirectional bool    `json:"bidirectional"`
	Wait          string  `json:"wait"` // polling, events, or mixed
	SpinUsec      float64 `json:"spin_usec"`
	HoldUsec      float64 `json:"hold_usec"`
	Checked       bool    `json:"checked"`
	SL            uint8   `json:"service_level"`
	TrafficClass  uint8   `json:"traffic_class"`
	FlowLabel     uint32  `json:"flow_label"`
}

// Result is what was measured with one size. Rates and times are zero where nothing was done.
type Result struct {
	Size       uint32   `json:"size"`       // bytes of a message or operation
	Iterations uint64   `json:"iterations"` // round trips, or operations of the sides that have any
	Lost       uint64   `json:"lost"`       // iterations without an answer, of uc and ud
	Complete   bool     `json:"complete"`   // false for what was done until a failure or Ctrl-C
	Inline     bool     `json:"inline"`
	Seconds    float64  `json:"seconds"`
	UsecPerOp  float64  `json:"usec_per_iteration"`
	Mbit       float64  `json:"mbit_per_second"` // of data, both ways together
	MiB        float64  `json:"mib_per_second"`  // the same in perftest's unit
	Mpps       float64  `json:"mpps"`            // million messages or operations a second, as perftest counts
	Latency    *Latency `json:"latency_usec"`    // null where this side takes no times
	CPU        CPU      `json:"cpu"`
	PeerCPU    *CPU     `json:"peer_cpu"` // null where the peer does not say

	bytes uint64 // of data, both ways together
}

// Latency is the distribution of the times of single iterations, in microseconds.
type Latency struct {
	Samples int64   `json:"samples"`
	Min     float64 `json:"min"`
	Mean    float64 `json:"mean"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p99_9"`
	Max     float64 `json:"max"`
}

// CPU is the processor time that one side's process took, user and system.
type CPU struct {
	UsecPerOp float64 `json:"usec_per_iteration"`
	NsPerByte float64 `json:"ns_per_byte"` // of data, both ways together
}

// Count is what one side has counted of one size.
type Count struct {
	Size       uint32
	Iterations uint64
	Lost       uint64
	Complete   bool
	Inline     bool
	Ways       int // messages or operations of an iteration: 2 where each has an answer or both sides have some
	Elapsed    time.Duration
	CPU        time.Duration
	PeerCPU    *time.Duration
	Times      *hdrhistogram.Histogram // of nanoseconds; nil if none were taken
}

// Result turns counts into rates.
func (c Count) Result() Result {
	bytes := c.Iterations * uint64(c.Size) * uint64(c.Ways)
	r := Result{
		Size: c.Size, Iterations: c.Iterations, Lost: c.Lost, Complete: c.Complete, Inline: c.Inline,
		Seconds: c.Elapsed.Seconds(), bytes: bytes, CPU: c.perOp(c.CPU, bytes),
	}
	if c.PeerCPU != nil {
		cpu := c.perOp(*c.PeerCPU, bytes)
		r.PeerCPU = &cpu
	}
	if c.Iterations > 0 && c.Elapsed > 0 {
		r.UsecPerOp = usec(c.Elapsed) / float64(c.Iterations)
		r.Mbit = float64(bytes) * 8 / usec(c.Elapsed)
		r.MiB = float64(bytes) / (1 << 20) / r.Seconds
		r.Mpps = float64(c.Iterations*uint64(c.Ways)) / usec(c.Elapsed)
	}
	if c.Times != nil && c.Times.TotalCount() > 0 {
		r.Latency = latency(c.Times)
	}
	return r
}

func (c Count) perOp(t time.Duration, bytes uint64) (cpu CPU) {
	if c.Iterations > 0 {
		cpu.UsecPerOp = usec(t) / float64(c.Iterations)
		cpu.NsPerByte = float64(t) / float64(bytes)
	}
	return cpu
}

func latency(h *hdrhistogram.Histogram) *Latency {
	at := func(percent float64) float64 { return float64(h.ValueAtQuantile(percent)) / 1000 }
	return &Latency{
		Samples: h.TotalCount(), Min: float64(h.Min()) / 1000, Mean: h.Mean() / 1000,
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: float64(h.Max()) / 1000,
	}
}

func usec(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// OneSided reports whether the peer's program takes no part in the operation.
func (s *Setup) OneSided() bool {
	return s.Operation != "send" && s.Operation != "write-imm" && s.Operation != rping
}

// passive reports whether this side's program does nothing but let the peer.
func (s *Setup) passive() bool { return s.OneSided() && !s.Bidirectional && s.Side == "server" }

// rping is the Operation of that protocol.
const rping = "rping"

// verb is the operation as verbs name it.
func (s *Setup) verb() string {
	return map[string]string{
		"send": "SEND", "write": "RDMA WRITE", "write-imm": "RDMA WRITE WITH IMMEDIATE", "read": "RDMA READ",
		"fetch-add": "ATOMIC FETCH AND ADD", "cmp-swap": "ATOMIC COMPARE AND SWAP",
	}[s.Operation]
}

// boundary says in lines what was measured, of the sizes that what names, and whether inline
// where that is one answer.
func (s *Setup) boundary(what, inline string) (lines []string) {
	transport := strings.ToUpper(s.Type)
	if s.Type == "srq" {
		transport = fmt.Sprintf("RC, %s with one shared receive queue", count(s.QueuePairs, "queue pair"))
	}
	if s.OneSided() {
		lines = append(lines, fmt.Sprintf("%s of %s over %s by %s", s.verb(), what, transport, s.initiators()))
		if !s.passive() {
			lines = append(lines, s.completion())
		}
	} else if s.Operation == rping {
		lines = append(lines, fmt.Sprintf("iterations of rping over RC: the server reads %s of the client and writes them back; two messages each way", what),
			"latency is of iterations, as the client sees them")
	} else {
		lines = append(lines, fmt.Sprintf("round trips of %s each way by %s over %s", what, s.verb(), transport),
			"latency is from the post of a message to the completion of its answer's receive, not halved")
		if s.Bidirectional {
			lines = append(lines, "both sides begin, so that messages go both ways at once")
		}
	}
	flight := "one at a time"
	if s.Depth > 1 {
		flight = fmt.Sprintf("%d in flight", s.Depth)
	}
	if s.Type == "srq" {
		flight += " on each queue pair"
	}
	signaled := "each signaled"
	if s.SignalEvery > 1 {
		signaled = fmt.Sprintf("one in %d signaled", s.SignalEvery)
	}
	queue := ""
	if !s.OneSided() {
		queue = fmt.Sprintf("; receive queue of %d", s.RxDepth)
	}
	waits := ""
	if !s.passive() {
		waits = "; " + s.waiting()
	}
	lines = append(lines, fmt.Sprintf("%s, %s%s%s%s", flight, signaled, inline, queue, waits))
	lines = append(lines, fmt.Sprintf("port %d of %s%s, %s%s", s.Port, s.Device, s.driver(), s.mtu(), s.quality()))
	switch {
	case s.Checked && s.Operation == "write":
		lines = append(lines, "every byte that the last write has left is checked, after the time")
	case s.Checked && !s.passive():
		lines = append(lines, "every byte that arrives is checked, which counts into all times")
	}
	return lines
}

func (s *Setup) initiators() string {
	switch {
	case s.Bidirectional:
		return "both sides at once; counted here: this side's"
	case s.passive():
		return "the client; this side's program took no part and timed nothing"
	}
	return "this side; the peer's program takes no part"
}

// completion says what the completion of a one-sided operation means.
func (s *Setup) completion() string {
	const from = "latency is from the post to the completion, which says that "
	switch {
	case s.Operation == "write" && s.Type == "uc":
		return from + "the data was sent, not that it arrived"
	case s.Operation == "write":
		return from + "the peer's device has the data"
	}
	return from + "the answer is in this side's memory"
}

func (s *Setup) waiting() string {
	sleep := "sleeping until an event"
	if s.HoldUsec > 0 {
		sleep += fmt.Sprintf(", with the thread held for %v", duration(s.HoldUsec))
	}
	switch s.Wait {
	case "events":
		return sleep
	case "mixed":
		return fmt.Sprintf("polling for %v, then %s", duration(s.SpinUsec), sleep)
	}
	return "busy polling"
}

func duration(usec float64) time.Duration { return time.Duration(usec * 1000) }

func (s *Setup) driver() string {
	if s.Driver == "" {
		return ""
	}
	return " (" + s.Driver + ")"
}

func (s *Setup) mtu() string {
	if s.Type == "ud" {
		return fmt.Sprintf("MTU %d", s.MTU)
	}
	return fmt.Sprintf("path MTU %d", s.MTU)
}

func (s *Setup) quality() (text string) {
	if s.SL != 0 {
		text += fmt.Sprintf(", service level %d", s.SL)
	}
	if s.TrafficClass != 0 {
		text += fmt.Sprintf(", traffic class %#02x", s.TrafficClass)
	}
	if s.FlowLabel != 0 {
		text += fmt.Sprintf(", flow label %#05x", s.FlowLabel)
	}
	return text
}

// Limit is the line that keeps the figures of a software device from being taken for
// those of hardware; empty for hardware.
func (s *Setup) Limit() string {
	if !s.Software {
		return ""
	}
	return fmt.Sprintf("software device%s: not a measure of RDMA hardware", s.driver())
}

func count(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
