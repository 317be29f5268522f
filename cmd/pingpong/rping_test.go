package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

func TestRangeOnTheWire(t *testing.T) {
	r := ibv.RemoteRange{Addr: 0x0102030405060708, RKey: 0x090a0b0c, Length: 0x0d0e0f10}
	msg := make([]byte, pingMessage)
	putRange(msg, r)
	assert.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, msg)
	assert.Equal(t, r, parseRange(msg))
}

// What rping -v prints of its data.
func TestPingData(t *testing.T) {
	for _, c := range []struct {
		iteration uint64
		text      string
	}{
		{0, `rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_` + "`abcdefghijklmnopqr"},
		{1, `rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_` + "`abcdefghijklmnopqrs"},
		{57, "rdma-ping-57: zABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmno"},
		{58, "rdma-ping-58: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnop"},
		{4294967294, "rdma-ping-4294967294: "},
	} {
		data := bytes.Repeat([]byte{0xff}, len(c.text)+1)
		fillPing(data, c.iteration)
		assert.Equal(t, c.text+"\x00", string(data))
	}
	data := make([]byte, maxPing)
	assert.Zero(t, testing.AllocsPerRun(10, func() { fillPing(data, 1<<31) }))
	assert.NotContains(t, string(data[:maxPing-1]), "\x00")
}

func TestVerifyPing(t *testing.T) {
	want := make([]byte, 64)
	fillPing(want, 7)
	got := bytes.Clone(want)
	require.NoError(t, verifyPing(got, want, 7))
	got[63] = 1
	assert.EqualError(t, verifyPing(got, want, 7), "data mismatch in iteration 8: byte 63 of 64 is 0x01, not 0x00")
}

func TestParseCM(t *testing.T) {
	cm := func(change func(*options)) options {
		o := defaults()
		o.cm, o.port, o.sizes = true, 7174, []uint32{64}
		o.server = "host"
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		args []string
		want options
	}{
		"client":           {[]string{"--cm", "host"}, cm(func(*options) {})},
		"server":           {[]string{"--cm"}, cm(func(o *options) { o.server, o.sizes, o.iters = "", []uint32{maxPing}, 0 })},
		"server of so few": {[]string{"--cm", "-s", "23", "-n", "9"}, cm(func(o *options) { o.server, o.sizes, o.iters = "", []uint32{23}, 9 })},
		"all": {[]string{"--cm", "host", "-vce", "-p", "1", "-s", "65535", "-n", "2", "--timeout", "0"},
			cm(func(o *options) {
				o.verbose, o.check, o.events, o.port, o.sizes, o.iters, o.timeout = true, true, true, 1, []uint32{maxPing}, 2, 0
			})},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(c.args)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"-v"}, "--verbose is for --cm"},
		{[]string{"--cm", "-s", "22"}, "--size 22: with --cm it is 23 to 65535"},
		{[]string{"--cm", "-s", "65536", "host"}, "--size 65536: with --cm it is 23 to 65535"},
		{[]string{"--cm", "-d", "rxe0"}, "--ib-dev does not go with --cm"},
		{[]string{"--cm", "-g", "1", "host"}, "--gid-idx does not go with --cm"},
		{[]string{"--cm", "-e", "--spin", "1us"}, "--spin does not go with --cm"},
		{[]string{"--cm", "-e", "--hold", "1ms"}, "--hold does not go with --cm"},
		{[]string{"--cm", "-t"}, "--ts does not go with --cm"},
		{[]string{"--cm", "-p", "0", "host"}, "a client needs the port"},
	} {
		_, err := parse(c.args)
		var usage *usageError
		require.ErrorAs(t, err, &usage, "%q", c.args)
		assert.ErrorContains(t, err, c.text, "%q", c.args)
	}
}
