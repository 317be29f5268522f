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
		"size":       {[]string{"-s", "1"}, func(o *options) { o.sizes = []uint32{1} }},
		"--size":     {[]string{"--size=0x10000"}, func(o *options) { o.sizes = []uint32{1 << 16} }},
		"most size":  {[]string{"-s", "4294967295"}, func(o *options) { o.sizes = []uint32{1<<32 - 1} }},
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
		"hold": {[]string{"--hold", "5ms", "-e"}, func(o *options) {
			o.events, o.hold = true, 5*time.Millisecond
		}},
		"spin": {[]string{"--spin", "50us", "-e"}, func(o *options) {
			o.events, o.spin = true, 50*time.Microsecond
		}},
		"odp":                             {[]string{"-o"}, func(o *options) { o.odp = true }},
		"--odp":                           {[]string{"--odp"}, func(o *options) { o.odp = true }},
		"type":                            {[]string{"--type", "uc"}, func(o *options) { o.typ = typeUC }},
		"uc":                              {[]string{"uc"}, func(o *options) { o.typ = typeUC }},
		"ud":                              {[]string{"ud", "host"}, func(o *options) { o.typ, o.server, o.sizes = typeUD, "host", []uint32{1024} }},
		"srq":                             {[]string{"srq", "host"}, func(o *options) { o.typ, o.server, o.numQP = typeSRQ, "host", 16 }},
		"num-qp":                          {[]string{"srq", "-q", "3"}, func(o *options) { o.typ, o.numQP = typeSRQ, 3 }},
		"--num-qp":                        {[]string{"--type=srq", "--num-qp=255"}, func(o *options) { o.typ, o.numQP = typeSRQ, 255 }},
		"a host that is called as a type": {[]string{"--type", "rc", "ud"}, func(o *options) { o.server = "ud" }},
		"inline":                          {[]string{"--inline", "3"}, func(o *options) { o.inline = &three }},
		"tclass":                          {[]string{"--tclass", "0x68"}, func(o *options) { o.tclass = 0x68 }},
		"flow-label":                      {[]string{"--flow-label", "0xfffff"}, func(o *options) { o.flowLabel = 0xfffff }},
		"json":                            {[]string{"--json"}, func(o *options) { o.json = true }},
		"plot":                            {[]string{"--plot", "a.svg"}, func(o *options) { o.plot = "a.svg" }},
		"op":                              {[]string{"--op", "write"}, func(o *options) { o.op, o.own = opWrite, []string{"--op"} }},
		"atomic":                          {[]string{"--op", "cmp-swap"}, func(o *options) { o.op, o.sizes, o.own = opCmpSwap, []uint32{8}, []string{"--op"} }},
		"depth":                           {[]string{"--depth", "16"}, func(o *options) { o.depth, o.own = 16, []string{"--depth"} }},
		"signal-every":                    {[]string{"--signal-every", "4"}, func(o *options) { o.signalEvery, o.own = 4, []string{"--signal-every"} }},
		"both ways":                       {[]string{"--bidirectional"}, func(o *options) { o.bidirectional, o.own = true, []string{"--bidirectional"} }},
		"sizes":                           {[]string{"--sizes", "1:5"}, func(o *options) { o.sizes, o.own = []uint32{1, 2, 4}, []string{"--sizes"} }},
		"units":                           {[]string{"--sizes", "512K:1M"}, func(o *options) { o.sizes, o.own = []uint32{1 << 19, 1 << 20}, []string{"--sizes"} }},
		"most":                            {[]string{"--sizes", "2G:3G"}, func(o *options) { o.sizes, o.own = []uint32{1 << 31}, []string{"--sizes"} }},
		"duration":                        {[]string{"--duration", "2s"}, func(o *options) { o.duration, o.own = 2*time.Second, []string{"--duration"} }},
		"warmup":                          {[]string{"--warmup", "9", "--depth=1"}, func(o *options) { o.warmup, o.own = 9, []string{"--depth", "--warmup"} }},
		"timeout":                         {[]string{"--timeout", "1m"}, func(o *options) { o.timeout = time.Minute }},
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
		[]uint32{uint32(o.port), uint32(o.ibPort), o.maxSize(), o.rxDepth, o.iters, uint32(o.sl)})
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
		{[]string{"--hold", "5ms"}, "--hold is for --events"},
		{[]string{"--hold", "-1ms", "-e"}, "--hold -1ms is not from 0 to 10ms"},
		{[]string{"--hold", "11ms", "-e"}, "--hold 11ms is not from 0 to 10ms"},
		{[]string{"--hold", "1us", "-e"}, "--hold 1µs is not from 0 to 10ms in whole milliseconds"},
		{[]string{"--timeout", "soon"}, "--timeout"},
		{[]string{"--timeout", "-1s"}, "negative"},
		{[]string{""}, "empty"},
		{[]string{"a", "b"}, `"b"`},
		{[]string{"-x"}, "unknown shorthand flag"},
		{[]string{"--type", "xrc"}, "--type xrc is none of rc, uc, ud, srq"},
		{[]string{"ud", "-m", "1024"}, "ud has no path MTU"},
		{[]string{"-q", "2"}, "--num-qp is for srq"},
		{[]string{"srq", "-q", "256"}, "1 to 255"},
		{[]string{"srq", "-q", "20", "-r", "19"}, "--rx-depth 19 is too small: there may be 20 messages on the way"},
		{[]string{"--depth", "8", "--bidirectional", "-r", "15"}, "there may be 16 messages on the way"},
		{[]string{"uc", "-o"}, "--odp is for rc and srq, not for uc"},
		{[]string{"--op", "recv"}, "--op recv is none of send write write-imm read fetch-add cmp-swap"},
		{[]string{"ud", "--op", "write"}, "--op write is not for ud, which has send only"},
		{[]string{"srq", "--op", "read"}, "--op read is not for srq"},
		{[]string{"uc", "--op", "read"}, "--op read is not for uc, which has send, write and write-imm"},
		{[]string{"--op", "fetch-add", "-s", "16"}, "works on 8 bytes"},
		{[]string{"--op", "fetch-add", "--sizes", "1:8"}, "works on 8 bytes"},
		{[]string{"-s", "1", "--sizes", "1:8"}, "give one of them"},
		{[]string{"-n", "1", "--duration", "1s"}, "give one of them"},
		{[]string{"--duration", "0"}, "no time to measure"},
		{[]string{"--op", "write", "--signal-every", "3", "--depth", "2"}, "more than --depth 2"},
		{[]string{"--sizes", "8"}, "FROM:TO"},
		{[]string{"--sizes", "8:4"}, "FROM:TO"},
		{[]string{"--sizes", "0:4"}, "FROM:TO"},
		{[]string{"--sizes", "1:4G"}, "FROM:TO"},
		{[]string{"--sizes", "1:2T"}, "FROM:TO"},
		{[]string{"--depth", "0"}, "1 to 65536"},
		{[]string{"--signal-every", "0"}, "1 to 65536"},
		{[]string{"--inline", "-1"}, "0 to 65536"},
		{[]string{"--tclass", "256"}, "0 to 255"},
		{[]string{"--flow-label", "0x100000"}, "0 to 1048575"},
		{[]string{"--plot", "a.png"}, "must end in .svg"},
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
	s := session{options: options{sl: 3, tclass: 0x68, flowLabel: 7, op: opSend}, mtu: ibv.MTU512}
	s.params(&p)
	assert.Equal(t, ibv.ConnectParams{PathMTU: ibv.MTU512, SL: 3, TrafficClass: 0x68, FlowLabel: 7, RetryCount: 6, RNRRetry: 6}, p)
}

func TestParseHelp(t *testing.T) {
	_, err := parse([]string{"-h"})
	assert.ErrorIs(t, err, pflag.ErrHelp)
}
