package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Counter is one counter of a device or port, as the kernel or driver names it. It counts
// from the load of the driver or the last reset; those of the InfiniBand standard
// (symbol_error and others) stop at their highest value, which may be 8 bits.
type Counter struct {
	Device string
	Port   int // 0 for one of the whole device
	Name   string
	Value  uint64
}

// Counters returns the counters of a device and its ports: first those of the standard,
// then the driver's own, by name. What cannot be read is left out and told.
func (f FS) Counters(d Device) (counters []Counter, problems []error) {
	read := func(port int, dir string) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
		a := attrs{dir: dir}
		for _, e := range entries {
			if e.Name() == "lifespan" { // not a counter: how long the kernel keeps what it has read
				continue
			}
			text, ok := a.text(e.Name())
			if !ok {
				continue
			}
			value, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				a.unexpected(e.Name(), text)
				continue
			}
			counters = append(counters, Counter{Device: d.Name, Port: port, Name: e.Name(), Value: value})
		}
		problems = append(problems, a.problems...)
	}
	device := filepath.Join(f.classDir(), d.Name)
	for _, p := range d.Ports {
		port := filepath.Join(device, "ports", strconv.Itoa(p.Number))
		read(p.Number, filepath.Join(port, "counters"))
		read(p.Number, filepath.Join(port, "hw_counters"))
	}
	read(0, filepath.Join(device, "hw_counters"))
	return counters, problems
}
