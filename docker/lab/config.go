//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	hosts   []host        // that run a command
	loss    string        // part of the RoCE packets on the link between them, in per cent
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

// linked tells whether there are two hosts, with a link between them.
func (c *config) linked() bool { return len(c.hosts) > 1 }

// host is what runs a command.
type host struct {
	name    string // "server" or "client", or "" for the only one
	args    []string
	netdev  string
	addrs   []string // of netdev, the first IPv4
	peer    string   // such an address of the other host
	capture string   // file for its packets, or ""
}

// outputs returns where what it sends to the ports from portOut on goes.
func (h host) outputs() ([]io.Writer, error) {
	if h.name == "" {
		return []io.Writer{os.Stdout, os.Stderr}, nil
	}
	to := []io.Writer{&lines{prefix: h.name + ": ", to: os.Stdout}, &lines{prefix: h.name + ": ", to: os.Stderr}}
	if h.capture != "" {
		f, err := os.Create(h.capture)
		if err != nil {
			return nil, fmt.Errorf("cannot write the capture: %w", err)
		}
		to = append(to, f)
	}
	return to, nil
}

func (c *config) allows(via string) bool { return c.via == "" || c.via == via }

// build is the folder of which the host keeps what is written in the VM.
func (c *config) build() string { return filepath.Join(c.root, "build") }

// log is where the VM's console is kept when the VM fails.
func (c *config) log(h host) string {
	if h.name != "" {
		return filepath.Join(c.cache, "console-"+h.name+".log")
	}
	return filepath.Join(c.cache, "console.log")
}

// configure reads the arguments and the environment.
func configure(args []string) (*config, error) {
	c := &config{
		via:    os.Getenv("RXE_VIA"),
		device: os.Getenv("RXE_DEV"),
		kernel: os.Getenv("RXE_KERNEL"),
		kvm:    "/dev/kvm",
	}
	parse := c.parseOne
	if program == "two-hosts" {
		parse = c.parseTwo
	}
	if err := parse(args); err != nil {
		return nil, err
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
		readInt(&c.memory, "RXE_MEM", c.memory, 512, "MiB"),
		readInt(&seconds, "RXE_BOOT_TIMEOUT", 60, 1, "seconds"),
	} {
		if err != nil {
			return nil, err
		}
	}
	c.boot = time.Duration(seconds) * time.Second
	if c.linked() {
		switch {
		case c.via == viaHost || c.via == viaModule:
			return nil, fmt.Errorf("RXE_VIA=%s: two hosts are two VMs: want kvm or tcg", c.via)
		case c.icount:
			return nil, errors.New("RXE_ICOUNT=1 gives each VM a time of its own, and so is not for two hosts")
		case inLabVM():
			return nil, errors.New("this is a VM of the lab: call docker/two-hosts outside")
		}
	} else if inLabVM() && c.via != viaModule {
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

// parseOne reads the arguments of with-rxe.
func (c *config) parseOne(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: docker/with-rxe CMD [ARG...]")
	}
	c.hosts = []host{{args: args, netdev: "dummy0", addrs: soloAddrs(0)}}
	c.memory = 4096
	return nil
}

// parseTwo reads the arguments of two-hosts.
func (c *config) parseTwo(args []string) error {
	const usage = "usage: docker/two-hosts [--loss PERCENT] [--capture FILE] SERVER-CMD [ARG...] -- CLIENT-CMD [ARG...] (-h says more)"
	flags := flag.NewFlagSet(program, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	capture := flags.String("capture", "", "")
	flags.Func("loss", "", func(s string) error {
		p, err := strconv.ParseFloat(s, 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return errors.New("want per cent, from 0 to 100")
		}
		c.loss = strconv.FormatFloat(p, 'f', -1, 64)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w: %s", err, usage)
	}
	server := flags.Args()
	i := slices.Index(server, "--")
	if i < 1 || i == len(server)-1 {
		return errors.New(usage)
	}
	server, client := server[:i], server[i+1:]
	const addr1, addr2 = "10.77.0.1", "10.77.0.2"
	c.hosts = []host{
		{name: "server", args: server, netdev: "eth0", addrs: []string{addr1 + "/24", "2001:db8::1/64"}, peer: addr2, capture: *capture},
		{name: "client", args: client, netdev: "eth0", addrs: []string{addr2 + "/24", "2001:db8::2/64"}, peer: addr1},
	}
	c.memory = 512
	return nil
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
