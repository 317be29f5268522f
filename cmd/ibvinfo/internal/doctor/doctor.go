// Package doctor finds out why RDMA devices do not work here. Each check is a function of an
// Env, which tests make up.
package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/goverbs/cmd/internal/attributes"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// Env is what the checks look at.
type Env struct {
	Root     string         // of all files: "/"
	Devices  []sysfs.Device // those to check
	NoDevice error          // why Devices is empty, if that is known
	Programs []string       // that use libibverbs

	LibraryPath string // the variable LD_LIBRARY_PATH

	// Open opens a device node and closes it again.
	Open func(node string) error
	// Verbs has libibverbs open the devices of these names.
	Verbs func(devices []string) (attributes.Document, error)
	// PFC returns the priorities, as bits, for which a network interface pauses.
	PFC func(netdev string) (uint8, error)

	opened attributes.Document // what Verbs said
}

// Status is the outcome of a check.
type Status string

const (
	OK      Status = "ok"
	Warning Status = "warning" // it works, but not as well as it could, or not everything
	Failed  Status = "failed"
)

// Check is one finding. Remedy is empty where all is well.
type Check struct {
	Check   string `json:"check"`
	Status  Status `json:"status"`
	Finding string `json:"finding"`
	Remedy  string `json:"remedy,omitempty"`
}

func ok(format string, args ...any) Check {
	return Check{Status: OK, Finding: fmt.Sprintf(format, args...)}
}

func warning(remedy, format string, args ...any) Check {
	return Check{Status: Warning, Remedy: remedy, Finding: fmt.Sprintf(format, args...)}
}

func failed(remedy, format string, args ...any) Check {
	return Check{Status: Failed, Remedy: remedy, Finding: fmt.Sprintf(format, args...)}
}

// checks are all, from the kernel up to the network. Where a check would only repeat what one
// before it has found, it finds nothing.
var checks = []struct {
	name string
	run  func(*Env) []Check
}{
	{"kernel modules", (*Env).modules},
	{"devices", (*Env).devices},
	{"network namespaces", (*Env).namespaces},
	{"device nodes", (*Env).nodes},
	{"permissions", (*Env).permissions},
	{"connection manager", (*Env).connectionManager},
	{"libibverbs", (*Env).libibverbs},
	{"provider libraries", (*Env).providers},
	{"static linking", (*Env).staticLinking},
	{"opening", (*Env).opening},
	{"memlock", (*Env).memlock},
	{"huge pages", (*Env).hugePages},
	{"NUMA", (*Env).numa},
	{"ports", (*Env).ports},
	{"MTU", (*Env).mtu},
	{"GIDs", (*Env).gids},
	{"PFC and ECN", (*Env).flowControl},
}

// Examine makes all checks.
func Examine(e Env) []Check {
	var all []Check
	for _, c := range checks {
		for _, f := range c.run(&e) {
			f.Check = c.name
			all = append(all, f)
		}
	}
	return all
}

func (e *Env) path(elem ...string) string {
	return filepath.Join(append([]string{e.Root}, elem...)...)
}

// shown is a path as a person on that host writes it.
func (e *Env) shown(path string) string {
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, e.Root), "/")
}

func (e *Env) exists(elem ...string) bool {
	_, err := os.Stat(e.path(elem...))
	return err == nil
}

// read returns a small file as text; empty where there is none.
func (e *Env) read(elem ...string) string {
	text, err := os.ReadFile(e.path(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// glob returns what matches, in order.
func (e *Env) glob(pattern string) []string {
	names, _ := filepath.Glob(e.path(pattern))
	return names
}

// field returns the rest of the line of a file in /proc that begins so.
func (e *Env) field(name string, elem ...string) string {
	for line := range strings.Lines(e.read(elem...)) {
		if rest, found := strings.CutPrefix(line, name); found {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// where names a port.
func where(d sysfs.Device, p sysfs.Port) string {
	return fmt.Sprintf("port %d of %s", p.Number, d.Name)
}
