package doctor

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/internal/sysfs"
)

// baseline is the rdma-core whose libibverbs programs of this library are linked with.
const baseline = 44

// libDirs are where distributions put libraries.
var libDirs = []string{
	"usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib", "usr/local/lib/*-linux-gnu", "usr/local/lib64",
	"lib/*-linux-gnu", "lib64", "lib",
}

// searched returns where the dynamic loader looks: what the environment and its configuration
// name, and where distributions put libraries.
func (e *Env) searched() []string {
	dirs := filepath.SplitList(e.LibraryPath)
	for _, conf := range e.glob("etc/ld.so.conf.d/*.conf") {
		for line := range strings.Lines(e.read(e.shown(conf))) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
	}
	return append(dirs, libDirs...)
}

// library returns the path of libibverbs, with links followed, and its folder.
func (e *Env) library() (file, dir string) {
	for _, d := range e.searched() {
		for _, name := range e.glob(d + "/libibverbs.so.1") {
			if file, err := filepath.EvalSymlinks(name); err == nil {
				return file, filepath.Dir(name)
			}
		}
	}
	return "", ""
}

// release is that of rdma-core in the name of the file: libibverbs.so.1.14.44.0.
var release = regexp.MustCompile(`libibverbs\.so\.1\.\d+\.(\d+)\.(\d+)$`)

const install = "Debian: apt-get install libibverbs1 ibverbs-providers; Fedora: dnf install libibverbs"

func (e *Env) libibverbs() []Check {
	file, _ := e.library()
	if file == "" {
		return []Check{failed(install, "libibverbs.so.1 is in no folder that the loader looks into")}
	}
	m := release.FindStringSubmatch(file)
	if m == nil {
		return []Check{warning("use that of a distribution, or of rdma-core's own build", "%s does not tell its version", e.shown(file))}
	}
	if n, _ := strconv.Atoi(m[1]); n < baseline {
		return []Check{warning(fmt.Sprintf("install rdma-core %d or newer", baseline), "%s is of rdma-core %s.%s, which is older than this library was tested with",
			e.shown(file), m[1], m[2])}
	}
	return []Check{ok("%s, of rdma-core %s.%s", e.shown(file), m[1], m[2])}
}

// providerOf are the provider libraries for the devices of a PCI driver.
var providerOf = map[string]string{
	"mlx5_core": "mlx5", "mlx4_core": "mlx4", "bnxt_en": "bnxt_re", "ice": "irdma", "i40e": "irdma", "irdma": "irdma", "cxgb4": "cxgb4",
	"qede": "qedr", "hns3": "hns", "efa": "efa", "mana": "mana", "erdma": "erdma", "hfi1": "hfi1verbs", "vmw_pvrdma": "vmw_pvrdma",
	"ib_mthca": "mthca", "be2net": "ocrdma", "ionic": "ionic",
}

// provider is the name of a device's provider library; empty if it is not known.
func provider(d sysfs.Device) string {
	switch {
	case d.Software && d.NodeType.Code == sysfs.NodeRNIC:
		return "siw"
	case d.Software:
		return "rxe"
	}
	return providerOf[d.Driver]
}

func (e *Env) providers() (found []Check) {
	_, dir := e.library()
	if dir == "" {
		return nil
	}
	var have []string
	for _, d := range e.Devices {
		name := provider(d)
		switch libs, _ := filepath.Glob(filepath.Join(dir, "libibverbs", "lib"+name+"-rdmav*.so")); {
		case name == "":
			found = append(found, warning("see what rdma-core says of the driver "+d.Driver, "the provider library of %s is not known", d.Name))
		case len(libs) == 0:
			found = append(found, failed("install the providers of the libibverbs that is here ("+install+")",
				"%s: there is no lib%s-rdmav*.so in %s/libibverbs", d.Name, name, e.shown(dir)))
		case e.exists("etc/libibverbs.d") && !e.exists("etc/libibverbs.d", name+".driver"):
			found = append(found, failed("write the line \"driver "+name+"\" to that file, or install the providers again",
				"%s: there is no /etc/libibverbs.d/%s.driver, so that libibverbs does not load the provider", d.Name, name))
		case !slices.Contains(have, filepath.Base(libs[0])):
			have = append(have, filepath.Base(libs[0]))
		}
	}
	if len(found) == 0 && len(have) > 0 {
		found = append(found, ok("%s", strings.Join(have, ", ")))
	}
	return found
}

// staticLinking looks at programs: a libibverbs within one loads no provider and so lists no
// device.
func (e *Env) staticLinking() (found []Check) {
	for _, program := range e.Programs {
		f, err := elf.Open(program)
		var format *elf.FormatError
		switch {
		case errors.As(err, &format):
			found = append(found, failed("name a program, not a script that starts it", "%s is not an ELF program: %v", program, err))
			continue
		case err != nil:
			found = append(found, failed("name a program", "%v", err))
			continue
		}
		libs, _ := f.ImportedLibraries() // none in a static program
		f.Close()
		dynamic := slices.ContainsFunc(libs, func(l string) bool { return strings.HasPrefix(l, "libibverbs.") })
		switch {
		case dynamic:
			found = append(found, ok("%s is linked with libibverbs dynamically", program))
		case contains(program, strings.Join([]string{"libibverbs", "Warning"}, ": ")): // not in this program itself
			found = append(found, failed("link it dynamically (no -static, and CGO_ENABLED=1)",
				"libibverbs is linked statically into %s: it loads no provider there and lists no device", program))
		default:
			found = append(found, warning("if it should, build it with cgo (CGO_ENABLED=1)", "%s does not use libibverbs", program))
		}
	}
	return found
}

func contains(file, text string) bool {
	content, _ := os.ReadFile(file)
	return bytes.Contains(content, []byte(text))
}

// opening has libibverbs open the devices that this process may use.
func (e *Env) opening() (found []Check) {
	var names []string
	for _, d := range e.Devices {
		if d.Unusable == nil {
			names = append(names, d.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	doc, err := e.Verbs(names)
	if err == nil && doc.Error != "" {
		err = errors.New(doc.Error)
	}
	if err != nil {
		return []Check{failed("see above for what keeps libibverbs from it; ibvinfo --verbose tries the same", "%v", err)}
	}
	e.opened = doc
	for _, d := range doc.Devices {
		if d.Error != "" {
			found = append(found, failed("see above for what keeps libibverbs from it", "%s", d.Error))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("libibverbs opens %s", strings.Join(names, ", ")))
	}
	return found
}
