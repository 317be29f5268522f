//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// The ways to a device, as RXE_VIA names them.
const (
	viaHost   = "host"
	viaModule = "module"
	viaKVM    = "kvm"
	viaTCG    = "tcg"
)

type config struct {
	hosts   []host        // that run a command; one
	via     string        // the only way to take; "" for the first that works
	device  string        // the host's device to use; "" for the first
	kernel  string        // series of the VM's kernel
	icount  bool          // the VM's clock counts instructions
	memory  int           // of the VM, in MiB
	boot    time.Duration // limit for the VM to boot
	verbose bool
	root    string // the project's folder
	cache   string // for kernels, and whether KVM works
	kvm     string // the node of KVM
}

// host is what runs a command.
type host struct {
	args []string
}

func (c *config) allows(via string) bool { return c.via == "" || c.via == via }

// build is the folder of which the host keeps what is written in the VM.
func (c *config) build() string { return filepath.Join(c.root, "build") }

// log is where the VM's console is kept when the VM fails.
func (c *config) log() string { return filepath.Join(c.cache, "console.log") }

// configure reads the arguments and the environment.
func configure(args []string) (*config, error) {
	c := &config{
		hosts:  []host{{args: args}},
		via:    os.Getenv("RXE_VIA"),
		device: os.Getenv("RXE_DEV"),
		kernel: os.Getenv("RXE_KERNEL"),
		kvm:    "/dev/kvm",
	}
	if len(args) == 0 {
		return nil, errors.New("usage: docker/with-rxe CMD [ARG...]")
	}
	switch c.via {
	case "", viaHost, viaModule, viaKVM, viaTCG:
	default:
		return nil, fmt.Errorf("RXE_VIA=%s: want host, module, kvm or tcg", c.via)
	}
	if c.kernel != "" && !regexp.MustCompile(`^\d+\.\d+$`).MatchString(c.kernel) {
		return nil, fmt.Errorf("RXE_KERNEL=%s: want 6.1 or 6.12", c.kernel)
	}
	seconds := 0
	for _, err := range []error{
		readBool(&c.icount, "RXE_ICOUNT"),
		readBool(&c.verbose, "RXE_VERBOSE"),
		readInt(&c.memory, "RXE_MEM", 4096, 512, "MiB"),
		readInt(&seconds, "RXE_BOOT_TIMEOUT", 60, 1, "seconds"),
	} {
		if err != nil {
			return nil, err
		}
	}
	c.boot = time.Duration(seconds) * time.Second
	if inLabVM() && c.via != viaModule {
		c.via = viaHost // the way that was asked for led here
	} else if c.icount {
		if !c.allows(viaTCG) {
			return nil, fmt.Errorf("RXE_ICOUNT=1 needs a VM without KVM: RXE_VIA=%s does not go with it", c.via)
		}
		c.via = viaTCG
	}
	self, err := os.Executable() // ROOT/build/lab
	if err != nil {
		return nil, err
	}
	c.root = filepath.Dir(filepath.Dir(self))
	if c.cache = os.Getenv("GOVERBS_CACHE"); c.cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("no folder for the cache: set HOME or GOVERBS_CACHE (%w)", err)
		}
		c.cache = filepath.Join(base, "goverbs")
	}
	return c, nil
}

func readBool(to *bool, name string) error {
	switch s := os.Getenv(name); s {
	case "", "0":
		return nil
	case "1":
		*to = true
		return nil
	default:
		return fmt.Errorf("%s=%s: want 0 or 1", name, s)
	}
}

func readInt(to *int, name string, otherwise, least int, unit string) error {
	*to = otherwise
	s := os.Getenv(name)
	if s == "" {
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least {
		return fmt.Errorf("%s=%s: want %s, %d or more", name, s, unit, least)
	}
	*to = n
	return nil
}
