package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Describe fills in Boundary.
func (r *Report) Describe() {
	if r.Setup == nil {
		return
	}
	what, inline := "each size", ""
	if len(r.Results) == 1 {
		what, inline = r.Results[0].what(), r.Results[0].inline(r.Setup)
	}
	lines := r.Setup.boundary(what, inline)
	if limit := r.Setup.Limit(); limit != "" {
		lines = append(lines, limit)
	}
	r.Boundary = strings.Join(lines, "; ")
}

// WriteJSON writes the report as one document.
func (r *Report) WriteJSON(w io.Writer) error {
	if r.Results == nil {
		r.Results = []Result{} // [] and not null
	}
	r.Describe()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes what was measured, one result in words and several as a table. Of one
// result the last two lines are those of C's pingpong programs.
func (r *Report) WriteText(w io.Writer) error {
	var text strings.Builder
	switch len(r.Results) {
	case 0:
		return nil
	case 1:
		r.writeOne(&text, r.Results[0])
	default:
		r.writeTable(&text)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func (r *Report) writeBoundary(w io.Writer, what, inline string) {
	head := "measured: "
	for _, line := range r.Setup.boundary(what, inline) {
		fmt.Fprintf(w, "%s%s\n", head, line)
		head = "          "
	}
}

func (r *Report) writeOne(w io.Writer, one Result) {
	r.writeBoundary(w, one.what(), one.inline(r.Setup))
	if l := one.Latency; l != nil {
		fmt.Fprintf(w, "latency:  %.2f usec p50, %.2f p90, %.2f p99, %.2f p99.9, %.2f max, of %d\n", l.P50, l.P90, l.P99, l.P999, l.Max, l.Samples)
	}
	fmt.Fprintf(w, "rate:     %.2f MiB/sec, %.6f Mpps%s\n", one.MiB, one.Mpps, r.ways())
	fmt.Fprintf(w, "CPU time: %v on this side", one.CPU)
	if one.PeerCPU != nil {
		fmt.Fprintf(w, "; %v on the peer's", *one.PeerCPU)
	}
	fmt.Fprintln(w)
	r.writeLoss(w, one)
	if limit := r.Setup.Limit(); limit != "" {
		fmt.Fprintln(w, limit)
	}
	fmt.Fprintf(w, "%d bytes in %.2f seconds = %.2f Mbit/sec\n%d iters in %.2f seconds = %.2f usec/iter\n",
		one.bytes, one.Seconds, one.Mbit, one.Iterations, one.Seconds, one.UsecPerOp)
}

// ways says what the rates of results count twice.
func (r *Report) ways() string {
	if r.Setup.OneSided() {
		return ""
	}
	return ", both ways together"
}

func (r *Report) writeLoss(w io.Writer, one Result) {
	if r.Setup.Type != "ud" && r.Setup.Type != "uc" || r.Setup.OneSided() {
		return
	}
	fmt.Fprintf(w, "lost:     %d of %d round trips had no answer\n", one.Lost, one.Iterations+one.Lost)
}

func (r *Report) writeTable(w io.Writer) {
	r.writeBoundary(w, "each size", "")
	fmt.Fprintf(w, "          MiB/sec and Mpps as perftest has them%s\n", r.ways())
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"bytes", "iters", "p50 usec", "p90", "p99", "p99.9", "max", "MiB/sec", "Mpps", "CPU usec/iter", "CPU ns/byte", "peer's", "", "inline", "lost"}
	fmt.Fprintln(tw, strings.Join(head, "\t")+"\t")
	for _, one := range r.Results {
		times, peer, inline := "-\t-\t-\t-\t-", "-\t-", "no"
		if l := one.Latency; l != nil {
			times = fmt.Sprintf("%.2f\t%.2f\t%.2f\t%.2f\t%.2f", l.P50, l.P90, l.P99, l.P999, l.Max)
		}
		if c := one.PeerCPU; c != nil {
			peer = fmt.Sprintf("%.2f\t%.2f", c.UsecPerOp, c.NsPerByte)
		}
		if one.Inline {
			inline = "yes"
		}
		fmt.Fprintf(tw, "%d\t%d\t%s\t%.2f\t%.6f\t%.2f\t%.2f\t%s\t%s\t%d\t\n", one.Size, one.Iterations, times,
			one.MiB, one.Mpps, one.CPU.UsecPerOp, one.CPU.NsPerByte, peer, inline, one.Lost)
	}
	tw.Flush()
	if limit := r.Setup.Limit(); limit != "" {
		fmt.Fprintln(w, limit)
	}
}

// what names the amount of data of an iteration.
func (one Result) what() string { return count(int(one.Size), "byte") }

// inline says how the data was sent, where this side sends any.
func (one Result) inline(s *Setup) string {
	switch {
	case s.OneSided() && s.Operation != "write", s.passive():
		return ""
	case one.Inline:
		return ", inline"
	}
	return ", not inline"
}

func (c CPU) String() string {
	return fmt.Sprintf("%.2f usec/iter, %.2f ns/byte", c.UsecPerOp, c.NsPerByte)
}
