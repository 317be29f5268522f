package sysfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

var (
	guids      = regexp.MustCompile(`^([0-9a-f]{4}:){3}[0-9a-f]{4}$`)
	linkLayers = regexp.MustCompile(`^(InfiniBand|Ethernet|Unknown)$`)
	rates      = regexp.MustCompile(`^[0-9.]+ Gb/sec\b`)
	netdevs    = regexp.MustCompile(`^\S+$`)
	gidTypes   = regexp.MustCompile(`^(IB/RoCE v1|RoCE v2)$`)
)

// attrs reads the files of one directory of sysfs and collects what goes wrong on the way.
type attrs struct {
	dir      string
	problems []error
}

func (a *attrs) problem(err error) { a.problems = append(a.problems, err) }

func (a *attrs) unexpected(name, text string) {
	a.problem(&fs.PathError{Op: "parse", Path: filepath.Join(a.dir, name), Err: fmt.Errorf("unexpected content %.40q", text)})
}

func (a *attrs) isDir() bool {
	info, err := os.Stat(a.dir)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "read", Path: a.dir, Err: errors.New("not a directory")}
	}
	if err != nil {
		a.problem(err)
	}
	return err == nil
}

func (a *attrs) has(name string) bool {
	_, err := os.Lstat(filepath.Join(a.dir, name))
	return err == nil
}

// read returns an attribute without its final newline. Binary content is an error: it would reach a
// terminal.
func (a *attrs) read(name string) (string, error) {
	file, err := os.Open(filepath.Join(a.dir, name))
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, 4096)) // no attribute is longer
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(content))
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return "", &fs.PathError{Op: "parse", Path: file.Name(), Err: fmt.Errorf("unexpected content %.40q", text)}
	}
	return text, nil
}

// optional reads an attribute that not every driver has.
func (a *attrs) optional(name string) string {
	text, err := a.read(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.problem(err)
	}
	return text
}

// text reads an attribute that every device or port has.
func (a *attrs) text(name string) (text string, ok bool) {
	text, err := a.read(name)
	if err != nil {
		a.problem(err)
	}
	return text, err == nil
}

// matching reads an attribute of a known form.
func (a *attrs) matching(name string, form *regexp.Regexp) string {
	text, ok := a.text(name)
	if ok && !form.MatchString(text) {
		a.unexpected(name, text)
		return ""
	}
	return text
}

func (a *attrs) enum(name string) Enum {
	text, ok := a.text(name)
	if !ok {
		return Enum{}
	}
	number, label, _ := strings.Cut(text, ":")
	code, err := strconv.Atoi(number)
	label = strings.TrimSpace(label)
	if err != nil || label == "" {
		a.unexpected(name, text)
		return Enum{}
	}
	return Enum{Code: code, Name: label}
}

func (a *attrs) uint32(name string) uint32 {
	text, ok := a.text(name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		a.unexpected(name, text)
		return 0
	}
	return uint32(n)
}

func (a *attrs) ipv6(name string) (addr netip.Addr, ok bool) {
	text, ok := a.text(name)
	if !ok {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is6() || addr.Zone() != "" {
		a.unexpected(name, text)
		return netip.Addr{}, false
	}
	return addr, true
}

// numbers returns the entries of a directory whose names are numbers, in order.
func (a *attrs) numbers(name string) (list []int, ok bool) {
	entries, err := os.ReadDir(filepath.Join(a.dir, name))
	if err != nil {
		a.problem(err)
		return nil, false
	}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n < 0 {
			a.problem(&fs.PathError{Op: "list", Path: filepath.Join(a.dir, name, e.Name()), Err: errors.New("not a number")})
			continue
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return list, true
}
