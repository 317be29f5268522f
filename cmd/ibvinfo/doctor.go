package main

import (
	"fmt"
	"os"

	"github.com/goverbs/goverbs/cmd/ibvinfo/internal/doctor"
	"github.com/goverbs/goverbs/cmd/internal/attributes"
)

// doctor is the command of that name.
func (r *reply) doctor(opts options) {
	devices, err := r.host.Devices()
	if opts.device != "" {
		var ok bool
		if devices, ok = r.devices(opts, false); !ok {
			return
		}
	}
	env := doctor.Env{
		Root: r.host.root, Devices: devices, NoDevice: err, Programs: opts.programs, LibraryPath: os.Getenv("LD_LIBRARY_PATH"),
		Open: func(node string) error {
			file, err := os.OpenFile(node, os.O_RDWR, 0)
			if err == nil {
				err = file.Close()
			}
			return err
		},
		Verbs: func(names []string) (attributes.Document, error) {
			out, _, _, err := openDevices(r.ctx, r.host.verbs, append([]string{"--json"}, names...)...)
			if err != nil {
				return attributes.Document{}, err
			}
			return decode(out)
		},
		PFC: doctor.KernelPFC,
	}
	if _, err := os.Stat(r.host.verbs); err == nil && len(env.Programs) == 0 {
		env.Programs = []string{r.host.verbs}
	}
	r.doc.Checks = doctor.Examine(env)
	colours := map[doctor.Status]int{doctor.OK: green, doctor.Warning: yellow, doctor.Failed: red}
	count := map[doctor.Status]int{}
	for _, c := range r.doc.Checks {
		count[c.Status]++
		line := c.Check + ": " + c.Finding
		if c.Remedy != "" {
			line += "; " + c.Remedy
		}
		r.printf("%s %s\n", r.paint(colours[c.Status], fmt.Sprintf("%-7s", c.Status)), line)
	}
	r.printf("\n%d ok, %d with a warning, %d failed\n", count[doctor.OK], count[doctor.Warning], count[doctor.Failed])
	if count[doctor.Failed] > 0 {
		r.status = exitFailure
	}
}
