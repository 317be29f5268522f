package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/goverbs/goverbs/cmd/internal/attributes"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// verbose has ibvinfo-verbs open the devices and tell their attributes.
func (r *reply) verbose(devices []sysfs.Device, port uint) {
	r.doc.Devices = describeAll(devices)
	args := []string{"--ib-port", strconv.FormatUint(uint64(port), 10)}
	if r.json {
		args = append(args, "--json")
	}
	for _, d := range devices {
		args = append(args, d.Name)
	}
	out, notes, status, err := openDevices(r.ctx, r.host.verbs, args...)
	if err != nil {
		r.fail(exitFailure, fmt.Errorf("%w; without --verbose ibvinfo needs /sys alone", err))
		return
	}
	r.status = status
	if !r.json {
		r.out.Write(out) //nolint:errcheck // Flush tells
		r.notes.Write(notes)
		return
	}
	doc, err := decode(out)
	if err != nil {
		r.fail(exitFailure, err)
		return
	}
	if doc.Error != "" {
		r.fail(exitFailure, errors.New(doc.Error))
	}
	for _, told := range doc.Devices {
		for i := range r.doc.Devices {
			if r.doc.Devices[i].Name == told.Name {
				r.doc.Devices[i].Verbs = &told
			}
		}
		if told.Error != "" {
			r.fail(exitFailure, errors.New(told.Error))
		}
	}
}

func decode(out []byte) (doc attributes.Document, err error) {
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber() // some are of 64 bits
	if err := d.Decode(&doc); err != nil {
		return doc, fmt.Errorf("what ibvinfo-verbs printed makes no sense: %w", err)
	}
	return doc, nil
}

// missing is what the dynamic loaders of glibc and musl say of a library.
var missing = regexp.MustCompile(`(?:error while loading shared libraries: |Error loading shared library )([^:]+): `)

// openDevices runs ibvinfo-verbs. The error says why it could not do its work; what is wrong
// with single devices is in what it prints and in its status.
func openDevices(ctx context.Context, program string, args ...string) (out, notes []byte, status int, err error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = os.Stdin // it reads nothing; but for others there must be a /dev/null
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if m := missing.FindSubmatch(stderr.Bytes()); err != nil && m != nil {
		return nil, nil, 0, fmt.Errorf("%s is not installed here, and without it no device can be opened "+
			"(Debian: apt-get install libibverbs1 ibverbs-providers)", m[1])
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited() && exit.ExitCode() == exitFailure:
		return stdout.Bytes(), stderr.Bytes(), exitFailure, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, 0, fmt.Errorf("cannot open devices: %w: the program, or the dynamic loader that it needs, is not here", err)
	case err != nil:
		return nil, nil, 0, fmt.Errorf("cannot open devices: %s: %w: %.200s", program, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), stderr.Bytes(), 0, nil
}
