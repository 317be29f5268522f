package main

import (
	"errors"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/ibv"
)

func TestParse(t *testing.T) {
	three := uint32(3)
	for name, c := range map[string]struct {
		args []string
		want func(o *options) // what differs from the defaults
	}{
		"none":       {nil, func(*options) {}},
		"server":     {[]string{"host"}, func(o *options) { o.server = "host" }},
		"port":       {[]string{"-p", "4000"}, func(o *options) { o.port = 4000 }},
		"port, long": {[]string{"--port=4000"}, func(o *options) { o.port = 4000 }},
		"port, any":  {[]string{"-p0"}, func(o *options) { o.port = 0 }},
		"device":     {[]string{"-d", "rxe0"}, func(o *options) { o.device = "rxe0" }},
		"ib-dev":     {[]string{"--ib-dev", "rxe0"}, func(o *options) { o.device = "rxe0" }},
		"ib-port":    {[]string{"-i", "2"}, func(o *options) { o.ibPort = 2 }},
		"--ib-port":  {[]string{"--ib-port", "2"}, func(o *options) { o.ibPort = 2 }},
		"size":       {[]string{"-s", "1"}, func(o *options) { o.size = 1 }},
		"--size":     {[]string{"--size=0x10000"}, func(o *options) { o.size = 1 << 16 }},
		"most size":  {[]string{"-s", "4294967295"}, func(o *options) { o.size = 1<<32 - 1 }},
		"mtu":        {[]string{"-m", "256"}, func(o *options) { o.mtu = ibv.MTU256 }},
		"--mtu":      {[]string{"--mtu=4096"}, func(o *options) { o.mtu = ibv.MTU4096 }},
		"rx-depth":   {[]string{"-r", "7"}, func(o *options) { o.rxDepth = 7 }},
		"--rx-depth": {[]string{"--rx-depth", "7"}, func(o *options) { o.rxDepth = 7 }},
		"iters":      {[]string{"-n1"}, func(o *options) { o.iters = 1 }},
		"--iters":    {[]string{"--iters=4294967295"}, func(o *options) { o.iters = 1<<32 - 1 }},
		"sl":         {[]string{"-l", "15"}, func(o *options) { o.sl = 15 }},
		"--sl":       {[]string{"--sl", "1"}, func(o *options) { o.sl = 1 }},
		"gid-idx":    {[]string{"-g", "3"}, func(o *options) { o.gidIndex = &three }},
		"--gid-idx":  {[]string{"--gid-idx", "3"}, func(o *options) { o.gidIndex = &three }},
		"chk":        {[]string{"-c"}, func(o *options) { o.check = true }},
		"--chk":      {[]string{"--chk"}, func(o *options) { o.check = true }},
		"events":     {[]string{"-e"}, func(o *options) { o.events = true }},
		"--events":   {[]string{"--events"}, func(o *options) { o.events = true }},
		"spin": {[]string{"--spin", "50us", "-e"}, func(o *options) {
			o.events, o.spin = true, 50*time.Microsecond
		}},
		"odp":     {[]string{"-o"}, func(o *options) { o.odp = true }},
		"--odp":   {[]string{"--odp"}, func(o *options) { o.odp = true }},
		"timeout": {[]string{"--timeout", "1m"}, func(o *options) { o.timeout = time.Minute }},
		"after the server, in one word": {[]string{"host", "-cn", "5"}, func(o *options) {
			o.server, o.check, o.iters = "host", true, 5
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := defaults()
			c.want(&want)
			got, err := parse(c.args)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

func TestDefaultsAreThoseOfC(t *testing.T) {
	o := defaults()
	assert.Equal(t, []uint32{18515, 1, 4096, 500, 1000, 0},
		[]uint32{uint32(o.port), uint32(o.ibPort), o.size, o.rxDepth, o.iters, uint32(o.sl)})
	assert.Less(t, o.timeout, 5*time.Second)
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"-p", "65536"}, "0 to 65535"},
		{[]string{"-p", "-1"}, "0 to 65535"},
		{[]string{"-p", ""}, "0 to 65535"},
		{[]string{"-p", "0", "host"}, "a client needs the port"},
		{[]string{"-i", "0"}, "1 to 255"},
		{[]string{"-s", "0"}, "1 to 4294967295"},
		{[]string{"-s", "4294967296"}, "1 to 4294967295"},
		{[]string{"-s", "4k"}, "1 to 4294967295"},
		{[]string{"-s", "99999999999999999999"}, "1 to 4294967295"},
		{[]string{"-m", "0"}, "not a path MTU"},
		{[]string{"-m", "1k"}, "not a path MTU"},
		{[]string{"-r", "0"}, "1 to 2147483647"},
		{[]string{"-r", "-1"}, "1 to 2147483647"},
		{[]string{"-n", "0"}, "1 to 4294967295"},
		{[]string{"-n", "4294967296"}, "1 to 4294967295"},
		{[]string{"-l", "16"}, "0 to 15"},
		{[]string{"-g", "-1"}, "0 to 255"},
		{[]string{"-g", "256"}, "0 to 255"},
		{[]string{"-g"}, "needs an argument"},
		{[]string{"-d", ""}, "needs the name of a device"},
		{[]string{"--spin", "50us"}, "--spin is for --events"},
		{[]string{"--spin", "0"}, "--spin is for --events"},
		{[]string{"--spin", "-1us", "-e"}, "negative"},
		{[]string{"--timeout", "soon"}, "--timeout"},
		{[]string{"--timeout", "-1s"}, "negative"},
		{[]string{""}, "empty"},
		{[]string{"a", "b"}, `"b"`},
		{[]string{"-x"}, "unknown shorthand flag"},
	} {
		_, err := parse(c.args)
		var usage *usageError
		require.True(t, errors.As(err, &usage), "%q: %v", c.args, err)
		assert.ErrorContains(t, err, c.text, "%q", c.args)
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestParams(t *testing.T) {
	p := ibv.ConnectParams{PathMTU: ibv.MTU4096, RetryCount: 7, RNRRetry: ibv.RNRRetryInfinite}
	s := session{options: options{sl: 3}, mtu: ibv.MTU512}
	s.params(&p)
	assert.Equal(t, ibv.ConnectParams{PathMTU: ibv.MTU512, SL: 3, RetryCount: 6, RNRRetry: ibv.RNRRetryInfinite}, p)
}

func TestParseHelp(t *testing.T) {
	_, err := parse([]string{"-h"})
	assert.ErrorIs(t, err, pflag.ErrHelp)
}
