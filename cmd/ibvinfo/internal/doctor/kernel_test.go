package doctor

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cmd/internal/attributes"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// What only opening a node tells no tree can make up.
func TestOpeningANode(t *testing.T) {
	for name, tt := range map[string]struct {
		unusable *sysfs.Unusable
		err      error
		want     Status
		says     string
	}{
		"fine":             {nil, nil, OK, "this process may open rxe0"},
		"by its mode":      {&sysfs.Unusable{Err: fs.ErrPermission, Advice: "be root"}, nil, Failed, "rxe0: permission denied; be root"},
		"by a rule":        {nil, unix.EPERM, Failed, "rxe0: operation not permitted, although its mode allows it; give the container the device (--device=/dev/infiniband)"},
		"gone":             {nil, unix.ENXIO, Failed, "rxe0: no such device or address: the node is of a device that is gone; remove the node"},
		"something":        {nil, errors.New("odd"), Failed, "rxe0: odd; see dmesg"},
		"not there at all": {&sysfs.Unusable{Err: fs.ErrNotExist}, nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := Env{Root: t.TempDir(), Devices: []sysfs.Device{{Name: "rxe0", Uverbs: "uverbs0", Unusable: tt.unusable}},
				Open: func(string) error { return tt.err }}
			found := e.permissions()
			if tt.want == "" {
				assert.Empty(t, found, "it is told of the nodes")
				return
			}
			assert.Len(t, found, 1)
			assert.Equal(t, tt.want, found[0].Status)
			assert.Contains(t, found[0].Finding+"; "+found[0].Remedy, tt.says)
		})
	}
}

// With nothing to look at no check fails to say something sensible.
func TestNothing(t *testing.T) {
	e := Env{Root: t.TempDir(), NoDevice: fs.ErrNotExist, Programs: []string{"/nowhere"},
		Open:  func(string) error { return errors.New("not asked for") },
		Verbs: func([]string) (attributes.Document, error) { return attributes.Document{}, errors.New("not asked for") },
		PFC:   func(string) (uint8, error) { return 0, errors.New("not asked for") }}
	for _, c := range Examine(e) {
		assert.NotEmpty(t, c.Check)
		assert.NotEmpty(t, c.Finding)
		assert.NotContains(t, c.Finding, "not asked for")
		if c.Status != OK {
			assert.NotEmpty(t, c.Remedy, c)
		}
	}
}

// PFC that the kernel tells, where sysfs does not.
func TestPFCOfTheKernel(t *testing.T) {
	port := sysfs.Port{Number: 1, Transport: sysfs.RoCE, State: sysfs.Enum{Code: active}, Netdev: "eth0"}
	e := Env{Root: t.TempDir(), Devices: []sysfs.Device{{Name: "mlx5_0", Ports: []sysfs.Port{port}}}}
	e.PFC = func(string) (uint8, error) { return 0b1000, nil }
	assert.Equal(t, "eth0: PFC for priority 3, ECN not told", e.flowControl()[0].Finding)
	e.PFC = func(string) (uint8, error) { return 0, nil }
	assert.Equal(t, Warning, e.flowControl()[0].Status)
}
