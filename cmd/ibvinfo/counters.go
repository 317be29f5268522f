package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/internal/sysfs"
)

// counters is the command of that name.
func (r *reply) counters(opts options) {
	devices, ok := r.devices(opts, false)
	if !ok {
		return
	}
	if opts.watch > 0 {
		r.watch(devices, opts)
		return
	}
	all, problems := r.readCounters(devices, opts)
	r.noteCounters(all, problems, opts.port)
	for _, c := range all {
		m := meaningOf(c.Name)
		r.doc.Counters = append(r.doc.Counters, counter{c.Device, c.Port, c.Name, c.Value, string(m.group), m.text})
	}
	if !r.json {
		r.printCounters(devices)
	}
}

// noteCounters notes which are missing.
func (r *reply) noteCounters(all []sysfs.Counter, problems []error, port uint) {
	switch {
	case len(all) > 0:
	case port != 0:
		r.note(fmt.Sprintf("port %d has no counters of its own in sysfs", port))
	default:
		r.note("the drivers of these devices have no counters in sysfs")
	}
	for _, p := range problems {
		r.note("could not be read: " + p.Error())
	}
}

// readCounters reads the counters of the devices, or of the one port that was asked for.
func (r *reply) readCounters(devices []sysfs.Device, opts options) (all []sysfs.Counter, problems []error) {
	for _, d := range devices {
		counters, wrong := r.host.Counters(d)
		if opts.port != 0 {
			counters = slices.DeleteFunc(counters, func(c sysfs.Counter) bool { return c.Port == 0 })
		}
		all = append(all, counters...)
		problems = append(problems, wrong...)
	}
	return all, problems
}

// printCounters prints a table for each port and group.
func (r *reply) printCounters(devices []sysfs.Device) {
	between := ""
	for _, d := range devices {
		ports := []int{0}
		for _, p := range d.Ports {
			ports = append(ports, p.Number)
		}
		for _, p := range ports {
			r.printPort(d.Name, p, &between)
		}
	}
}

func (r *reply) printPort(device string, port int, between *string) {
	for _, g := range groups {
		t := newTable(r.out)
		some := false
		for _, c := range r.doc.Counters {
			if c.Device != device || c.Port != port || c.Group != string(g) {
				continue
			}
			if !some {
				fmt.Fprintf(r.out, "%s%s: %s\n", *between, where(device, port), g)
				*between, some = "\n", true
			}
			cells := []string{strconv.FormatUint(c.Value, 10), c.Name}
			switch tells := g == congestion || g == loss || g == notReady; {
			case tells && c.Value > 0: // only the last column, whose width does not matter
				cells = append(cells, r.paint(yellow, c.Meaning))
			case c.Meaning != "":
				cells = append(cells, c.Meaning)
			}
			t.cells(cells...)
		}
		t.flush()
	}
}

func where(device string, port int) string {
	if port == 0 {
		return device
	}
	return fmt.Sprintf("%s port %d", device, port)
}

// watch prints what has changed in each interval, until it is enough or Ctrl-C.
func (r *reply) watch(devices []sysfs.Device, opts options) {
	old, problems := r.readCounters(devices, opts)
	last := time.Now()
	if r.noteCounters(old, problems, opts.port); len(old) == 0 {
		return
	}
	if r.json {
		fmt.Fprint(r.out, `{"samples":[`)
		r.doc.streamed = true
	}
	ticker := time.NewTicker(opts.watch)
	defer ticker.Stop()
	for n := uint(0); opts.count == 0 || n < opts.count; n++ {
		select {
		case <-ticker.C:
		case <-r.ctx.Done():
		}
		if r.ctx.Err() != nil { // also where both have come
			return
		}
		now := time.Now()
		current, _ := r.readCounters(devices, opts)
		if len(current) == 0 {
			r.fail(exitFailure, errors.New("there are no counters any more: has the device been removed?"))
			return
		}
		s := compare(old, current, now.Sub(last))
		s.Time = now.Round(time.Millisecond)
		old, last = current, now
		if r.json {
			text, _ := json.Marshal(s)
			fmt.Fprintf(r.out, "%s%s", strings.Repeat(",\n", int(min(n, 1))), text)
		} else {
			r.printSample(s)
		}
		if r.out.Flush() != nil { // run tells of it
			return
		}
	}
}

// compare returns the counters that differ. One that went back began anew, and of one that
// could not be read before nobody knows how far it came.
func compare(old, current []sysfs.Counter, took time.Duration) sample {
	type key struct {
		device string
		port   int
		name   string
	}
	before := map[key]uint64{}
	for _, c := range old {
		before[key{c.Device, c.Port, c.Name}] = c.Value
	}
	s := sample{Seconds: took.Seconds(), Changes: []change{}}
	for _, c := range current {
		was, known := before[key{c.Device, c.Port, c.Name}]
		if !known || c.Value == was {
			continue
		}
		ch := change{Device: c.Device, Port: c.Port, Name: c.Name, Group: string(meaningOf(c.Name).group), Delta: c.Value - was}
		if ch.Reset = c.Value < was; ch.Reset {
			ch.Delta = c.Value
		}
		ch.Rate = float64(ch.Delta) / took.Seconds()
		s.Changes = append(s.Changes, ch)
	}
	slices.SortStableFunc(s.Changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port),
			cmp.Compare(slices.Index(groups, group(a.Group)), slices.Index(groups, group(b.Group))))
	})
	return s
}

func (r *reply) printSample(s sample) {
	fmt.Fprintf(r.out, "%s, after %.2f s\n", s.Time.Format("15:04:05.000"), s.Seconds)
	if len(s.Changes) == 0 {
		fmt.Fprintln(r.out, "nothing has changed")
		return
	}
	t := newTable(r.out, "WHERE", "GROUP", "COUNTER", "CHANGE", "PER SECOND")
	for _, c := range s.Changes {
		delta := fmt.Sprintf("+%d", c.Delta)
		if c.Reset {
			delta += " (reset)"
		}
		t.row(where(c.Device, c.Port), c.Group, c.Name, delta, fmt.Sprintf("%.1f", c.Rate))
	}
	t.flush()
}
