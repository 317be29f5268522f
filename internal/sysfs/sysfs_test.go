package sysfs_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/internal/sysfs/sysfstest"
)

func build(t *testing.T, tree string) sysfs.FS {
	t.Helper()
	root, err := sysfstest.Build(t.TempDir(), tree)
	require.NoError(t, err)
	return root
}

func devices(t *testing.T, tree string) []sysfs.Device {
	t.Helper()
	list, err := build(t, tree).Devices()
	require.NoError(t, err)
	return list
}

func gid(index int, addr string, kind sysfs.GIDType, netdev string) sysfs.GID {
	return sysfs.GID{Index: index, Addr: netip.MustParseAddr(addr), Type: kind, Netdev: netdev}
}

var (
	ca     = sysfs.Enum{Code: sysfs.NodeCA, Name: "CA"}
	active = sysfs.Enum{Code: 4, Name: "ACTIVE"}
	down   = sysfs.Enum{Code: 1, Name: "DOWN"}
	linkUp = sysfs.Enum{Code: 5, Name: "LinkUp"}
)

func TestDevices(t *testing.T) {
	tests := []struct {
		tree string
		want []sysfs.Device
	}{
		{"none", []sysfs.Device{}},
		{"infiniband", []sysfs.Device{{
			Name: "mlx4_0", NodeType: ca, NodeGUID: "f452:1403:0001:a2b0", SysImageGUID: "f452:1403:0001:a2b3",
			FirmwareVersion: "2.42.5000", HCAType: "MT4099", BoardID: "MT_1090120019",
			BusID: "0000:04:00.0", Driver: "mlx4_core", NUMANode: 0, Uverbs: "uverbs0",
			Ports: []sysfs.Port{{
				Number: 1, State: active, PhysState: linkUp, LinkLayer: "InfiniBand", Transport: sysfs.InfiniBand,
				Rate: "56 Gb/sec (4X FDR)", LID: 5, SMLID: 1, Netdev: "ib0",
				GIDs: []sysfs.GID{gid(0, "fe80::f452:1403:1:a2b1", sysfs.GIDInfiniBand, "")},
			}, {
				Number: 2, State: down, PhysState: sysfs.Enum{Code: 2, Name: "Polling"}, LinkLayer: "InfiniBand",
				Transport: sysfs.InfiniBand, Rate: "10 Gb/sec (4X SDR)", Netdev: "ib1",
				GIDs: []sysfs.GID{gid(0, "fe80::f452:1403:1:a2b2", sysfs.GIDInfiniBand, "")},
			}},
		}}},
		{"roce-two-ports", []sysfs.Device{{
			Name: "mlx4_0", NodeType: ca, NodeGUID: "e41d:2d03:0010:8f50", SysImageGUID: "e41d:2d03:0010:8f50",
			FirmwareVersion: "2.42.5000", HCAType: "MT4103", BoardID: "MT_1090111019",
			BusID: "0000:05:00.0", Driver: "mlx4_core", NUMANode: 1, Uverbs: "uverbs0",
			Ports: []sysfs.Port{{
				Number: 1, State: active, PhysState: linkUp, LinkLayer: "Ethernet", Transport: sysfs.RoCE,
				Rate: "40 Gb/sec (4X QDR)", Netdev: "eth2",
				GIDs: []sysfs.GID{
					gid(0, "fe80::e61d:2dff:fe10:8f51", sysfs.GIDRoCEv1, "eth2"),
					gid(1, "fe80::e61d:2dff:fe10:8f51", sysfs.GIDRoCEv2, "eth2"),
					gid(2, "::ffff:192.168.10.5", sysfs.GIDRoCEv1, "eth2"),
					gid(3, "::ffff:192.168.10.5", sysfs.GIDRoCEv2, "eth2"),
					gid(5, "::ffff:192.168.20.5", sysfs.GIDRoCEv2, "eth2.100"),
					gid(10, "::ffff:192.168.20.6", sysfs.GIDRoCEv2, "eth2.100"),
				},
			}, {
				Number: 2, State: down, PhysState: sysfs.Enum{Code: 3, Name: "Disabled"}, LinkLayer: "Ethernet",
				Transport: sysfs.RoCE, Rate: "10 Gb/sec (1X QDR)", Netdev: "eth3",
			}},
		}}},
		{"soft", []sysfs.Device{{
			Name: "rxe0", NodeType: ca, NodeGUID: "5054:00ff:fe12:3456", SysImageGUID: "5054:00ff:fe12:3456",
			Software: true, NUMANode: -1, Uverbs: "uverbs0",
			Ports: []sysfs.Port{{
				Number: 1, State: active, PhysState: linkUp, LinkLayer: "Ethernet", Transport: sysfs.RoCE,
				Rate: "2.5 Gb/sec (1X SDR)", Netdev: "dummy0",
				GIDs: []sysfs.GID{
					gid(0, "fe80::5054:ff:fe12:3456", sysfs.GIDRoCEv2, "dummy0"),
					gid(1, "::ffff:10.77.0.1", sysfs.GIDRoCEv2, "dummy0"),
				},
			}},
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.tree, func(t *testing.T) {
			assert.Equal(t, tt.want, devices(t, tt.tree))
		})
	}
}

func TestTwoDevices(t *testing.T) {
	list := devices(t, "roce-two-devices")
	require.Len(t, list, 2)
	for i, want := range []struct{ name, bus, uverbs, netdev string }{
		{"rocep59s0f0", "0000:3b:00.0", "uverbs0", "enp59s0f0np0"},
		{"rocep59s0f1", "0000:3b:00.1", "uverbs1", "enp59s0f1np1"},
	} {
		d := list[i]
		require.Len(t, d.Ports, 1)
		assert.Equal(t, want.name, d.Name)
		assert.Equal(t, want.bus, d.BusID)
		assert.Equal(t, want.uverbs, d.Uverbs)
		assert.Equal(t, want.netdev, d.Ports[0].Netdev)
		assert.Len(t, d.Ports[0].GIDs, 6)
		assert.Nil(t, d.Unusable)
		assert.Empty(t, d.Problems)
		assert.Empty(t, d.Ports[0].Problems)
	}
}

// The link layer of iWARP is Ethernet too: only the node type tells it from RoCE.
func TestIWARP(t *testing.T) {
	list := devices(t, "iwarp")
	require.Len(t, list, 1)
	d := list[0]
	require.Len(t, d.Ports, 1)
	p := d.Ports[0]
	assert.Equal(t, sysfs.IWARP, p.Transport)
	assert.Equal(t, "ens801f0", p.Netdev)
	require.Len(t, p.GIDs, 1)
	assert.Equal(t, sysfs.GIDIWARP, p.GIDs[0].Type)
	assert.False(t, p.GIDs[0].IP().IsValid())
	assert.Equal(t, -1, d.NUMANode)
	assert.False(t, d.Software)
	assert.Empty(t, d.Problems)
	assert.Empty(t, p.Problems)
}

func TestSoftware(t *testing.T) {
	const zero = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	tests := []struct {
		name   string
		change func(device string) error
	}{
		{"siw tells no interface", func(device string) error { return os.Remove(filepath.Join(device, "parent")) }},
		{"rxe below the NIC, on older kernels", func(device string) error {
			return os.Symlink("../../..", filepath.Join(device, "device"))
		}},
		{"interface down, so no GIDs", func(device string) error {
			gids := filepath.Join(device, "ports/1/gids")
			return errors.Join(
				os.Remove(filepath.Join(gids, "0")), os.WriteFile(filepath.Join(gids, "0"), []byte(zero), 0o444),
				os.Remove(filepath.Join(gids, "1")), os.WriteFile(filepath.Join(gids, "1"), []byte(zero), 0o444))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := build(t, "soft")
			require.NoError(t, tt.change(filepath.Join(root.Sys, "devices/virtual/infiniband/rxe0")))
			list, err := root.Devices()
			require.NoError(t, err)
			require.Len(t, list, 1)
			assert.True(t, list[0].Software)
			assert.Empty(t, list[0].BusID)
			assert.Equal(t, "dummy0", list[0].Ports[0].Netdev)
			assert.Empty(t, list[0].Problems)
		})
	}
}

func TestGID(t *testing.T) {
	tests := []struct {
		name, text, ip string
		gid            sysfs.GID
	}{
		{"IPv4", "0000:0000:0000:0000:0000:ffff:0a4d:0001", "10.77.0.1", gid(1, "::ffff:10.77.0.1", sysfs.GIDRoCEv2, "eth0")},
		{"IPv6", "2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::1", gid(1, "2001:db8::1", sysfs.GIDRoCEv1, "eth0")},
		{"InfiniBand", "fe80:0000:0000:0000:0000:0000:0000:0001", "invalid IP", gid(0, "fe80::1", sysfs.GIDInfiniBand, "")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.text, tt.gid.String())
			assert.Equal(t, tt.ip, tt.gid.IP().String())
		})
	}
}

func TestNoSubsystem(t *testing.T) {
	list, err := build(t, "no-subsystem").Devices()
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.Empty(t, list)
}

// relative makes problems comparable between temporary directories and systems.
func relative(root sysfs.FS, problems []error) []string {
	var list []string
	for _, p := range problems {
		text := strings.ReplaceAll(p.Error(), filepath.Join(root.Sys, "class", "infiniband")+"/", "")
		list = append(list, text)
	}
	slices.Sort(list)
	return list
}

func TestBroken(t *testing.T) {
	root := build(t, "broken")
	list, err := root.Devices()
	require.NoError(t, err)
	require.Len(t, list, 4, "a broken device does not hide the others, nor itself")

	d := list[0]
	assert.Equal(t, ca, d.NodeType, "what can be read is there")
	assert.Equal(t, "0000:04:00.0", d.BusID)
	assert.Empty(t, d.NodeGUID)
	assert.Equal(t, -1, d.NUMANode)
	assert.Equal(t, []string{
		"list mlx5_0/ports: port 1 is missing, although there is a port 2",
		`parse mlx5_0/board_id: unexpected content "\x1b[31mMT_0000000008"`,
		`parse mlx5_0/device/numa_node: unexpected content "none"`,
		`parse mlx5_0/node_guid: unexpected content "not a guid"`,
		"read mlx5_0/sys_image_guid: is a directory",
	}, relative(root, d.Problems))

	require.Len(t, d.Ports, 3)
	p := d.Ports[0]
	assert.Equal(t, 2, p.Number)
	assert.Equal(t, sysfs.RoCE, p.Transport)
	assert.Equal(t, sysfs.Enum{}, p.State)
	assert.Empty(t, p.Rate)
	assert.Equal(t, []sysfs.GID{
		gid(0, "fe80::526b:4bff:fec1:2d3e", sysfs.GIDRoCEv1, "eth0"),
		gid(2, "::ffff:10.77.0.1", "", "eth0"),
		gid(3, "::ffff:10.77.0.2", sysfs.GIDRoCEv2, ""),
	}, p.GIDs)
	assert.Equal(t, []string{
		"list mlx5_0/ports/2/gids/x: not a number",
		`parse mlx5_0/ports/2/gid_attrs/types/2: unexpected content "RoCE v9"`,
		`parse mlx5_0/ports/2/gids/1: unexpected content "zz"`,
		`parse mlx5_0/ports/2/lid: unexpected content "0xfffffffff"`,
		`parse mlx5_0/ports/2/rate: unexpected content "\x1b[31mfast"`,
		`parse mlx5_0/ports/2/state: unexpected content "up and running"`,
		"read mlx5_0/ports/2/gid_attrs/ndevs/3: is a directory",
		"read mlx5_0/ports/2/phys_state: is a directory",
	}, relative(root, p.Problems))
	assert.Equal(t, []string{"stat mlx5_0/ports/3: no such file or directory"}, relative(root, d.Ports[1].Problems))
	assert.Equal(t, []string{"read mlx5_0/ports/4: not a directory"}, relative(root, d.Ports[2].Problems))

	assert.Equal(t, []string{"stat mlx5_1: no such file or directory"}, relative(root, list[1].Problems))
	assert.Equal(t, []string{"read mlx5_2: not a directory"}, relative(root, list[2].Problems))
	assert.Equal(t, []string{
		"lstat mlx5_3/gone: no such file or directory",
		"open mlx5_3/node_guid: no such file or directory",
		"open mlx5_3/ports: no such file or directory",
		"open mlx5_3/sys_image_guid: no such file or directory",
	}, relative(root, list[3].Problems))
	assert.False(t, list[3].Software, "hardware that cannot be found is not software")
}

// Whatever becomes of one file, the rest is read as before, and what is lost is told.
func TestOneBadFile(t *testing.T) {
	root := build(t, "roce-two-devices")
	before, err := root.Devices()
	require.NoError(t, err)

	spoil := map[string]func(path string) error{
		"gone":       func(string) error { return nil },
		"unreadable": func(path string) error { return os.Mkdir(path, 0o755) },
		"senseless":  func(path string) error { return os.WriteFile(path, []byte("\x00\xff: \x1b[2J"), 0o644) },
		"empty":      func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"dangling":   func(path string) error { return os.Symlink("nowhere", path) },
	}
	aside := filepath.Join(t.TempDir(), "aside")
	files := 0
	require.NoError(t, filepath.WalkDir(root.Sys, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		file, err := filepath.EvalSymlinks(path)
		if err != nil || strings.Contains(path+file, "0000:3b:00.1") { // the second function's stay as they are
			return err
		}
		files++
		for kind, put := range spoil {
			where := kind + " " + path
			require.NoError(t, os.Rename(path, aside))
			require.NoError(t, put(path), where)
			after, err := root.Devices()
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.Rename(aside, path))

			require.NoError(t, err, where)
			for _, was := range before {
				i := slices.IndexFunc(after, func(d sysfs.Device) bool { return d.Name == was.Name })
				if i < 0 {
					assert.Equal(t, "gone "+root.Sys+"/class/infiniband/rocep59s0f0", where)
				} else if !assert.ObjectsAreEqual(was, after[i]) {
					assert.Equal(t, "rocep59s0f0", was.Name, where)
					assert.True(t, complains(after[i]) || optional(path) || kind == "gone" && filepath.Base(filepath.Dir(path)) == "gids", where)
				}
			}
		}
		return nil
	}))
	assert.Greater(t, files, 30)
}

func complains(d sysfs.Device) bool {
	return d.Unusable != nil || len(d.Problems) > 0 ||
		slices.ContainsFunc(d.Ports, func(p sysfs.Port) bool { return len(p.Problems) > 0 })
}

// optional tells the files that a device need not have or that may say nothing.
func optional(path string) bool {
	return slices.Contains([]string{"fw_ver", "hca_type", "board_id", "numa_node", "driver", "device"}, filepath.Base(path))
}

func TestSelectPort(t *testing.T) {
	d := devices(t, "infiniband")[0]
	second, ok := d.SelectPort(2)
	require.True(t, ok)
	require.Len(t, second.Ports, 1)
	assert.Equal(t, 2, second.Ports[0].Number)
	require.Len(t, d.Ports, 2, "the device itself is as before")
	assert.Equal(t, 1, d.Ports[0].Number)
	_, ok = d.SelectPort(3)
	assert.False(t, ok)
}

func TestIsSoftware(t *testing.T) {
	soft := build(t, "soft")
	assert.True(t, soft.IsSoftware("rxe0"))
	assert.False(t, soft.IsSoftware("nonesuch"))
	assert.False(t, build(t, "infiniband").IsSoftware("mlx4_0"))
}

func TestCounters(t *testing.T) {
	root := build(t, "soft")
	list, err := root.Devices()
	require.NoError(t, err)
	port := filepath.Join(root.Sys, "class/infiniband/rxe0/ports/1")
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write(filepath.Join(port, "counters/port_xmit_data"), "18446744073709551615\n")
	write(filepath.Join(port, "counters/port_rcv_data"), "N/A (no PMA)\n")
	require.NoError(t, os.Mkdir(filepath.Join(port, "counters/port_xmit_wait"), 0o755)) // it cannot be read
	write(filepath.Join(root.Sys, "class/infiniband/rxe0/hw_counters/tx_bytes"), "5\n")

	counters, problems := root.Counters(list[0])
	assert.Equal(t, sysfs.Counter{Device: "rxe0", Port: 1, Name: "port_xmit_data", Value: 1<<64 - 1}, counters[0])
	assert.Equal(t, sysfs.Counter{Device: "rxe0", Port: 1, Name: "ack_deferred", Value: 7}, counters[1])
	assert.Equal(t, sysfs.Counter{Device: "rxe0", Name: "tx_bytes", Value: 5}, counters[len(counters)-1])
	assert.Len(t, counters, 17, "lifespan is no counter")
	require.Len(t, problems, 2)
	assert.ErrorContains(t, problems[0], "no PMA")
	assert.ErrorContains(t, problems[1], "port_xmit_wait")

	none, problems := root.Counters(sysfs.Device{Name: "gone", Ports: []sysfs.Port{{Number: 1}}})
	assert.Empty(t, none)
	assert.Empty(t, problems, "no counters are no problem")
}
