package ibv

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/cverbs"
)

func TestSRQInitAttr(t *testing.T) {
	a := SRQInitAttr{MaxWR: 100, MaxSGE: 2}
	require.NoError(t, a.Check())
	assert.NoError(t, SRQInitAttr{MaxWR: 1}.Check(), "a receive of no bytes needs no SGE")
	assert.Equal(t, "shared receive queue of 100 WRs with 2 SGEs", a.String())
	assert.ErrorContains(t, SRQInitAttr{MaxSGE: 1}.Check(), "SRQInitAttr.MaxWR is 0")

	d := cverbs.DeviceAttr{MaxSRQ: 1, MaxSRQWR: 100, MaxSRQSGE: 2}
	require.NoError(t, a.checkDevice(&d))
	assert.ErrorContains(t, SRQInitAttr{MaxWR: 101}.checkDevice(&d), "SRQInitAttr.MaxWR 101 is above the device's max_srq_wr 100")
	assert.ErrorContains(t, SRQInitAttr{MaxWR: math.MaxUint32}.checkDevice(&d), "above the device's max_srq_wr")
	assert.ErrorContains(t, SRQInitAttr{MaxWR: 1, MaxSGE: 3}.checkDevice(&d), "SRQInitAttr.MaxSGE 3 is above the device's max_srq_sge 2")
	assert.ErrorContains(t, a.checkDevice(&cverbs.DeviceAttr{}), "has no shared receive queues")
}

func TestSRQAttrCheck(t *testing.T) {
	const all = SRQMaxWR | SRQLimit
	for _, test := range []struct {
		attr SRQAttr
		mask SRQAttrMask
		want string
	}{
		{SRQAttr{MaxWR: 20, Limit: 20}, all, ""},
		{SRQAttr{Limit: 10}, SRQLimit, ""},
		{SRQAttr{Limit: 0}, SRQLimit, ""},
		{SRQAttr{MaxWR: 0, Limit: 99, MaxSGE: 99}, 0, ""},
		{SRQAttr{Limit: 11}, SRQLimit, "SRQAttr.Limit 11 is above the 10 receives"},
		{SRQAttr{MaxWR: 5, Limit: 6}, all, "SRQAttr.Limit 6 is above the 5 receives"},
		{SRQAttr{MaxWR: 99, Limit: 11}, SRQLimit, "Limit 11 is above the 10"},
		{SRQAttr{}, SRQMaxWR, "SRQAttr.MaxWR is 0"},
		{SRQAttr{MaxWR: 5}, SRQMaxWR | 1<<2, "no attribute 0x4"},
	} {
		err := test.attr.check(test.mask, 10)
		if test.want == "" {
			assert.NoError(t, err, "%+v %v", test.attr, test.mask)
		} else {
			assert.ErrorContains(t, err, test.want)
		}
	}
}

func TestSRQAttrCheckDevice(t *testing.T) {
	fixed := cverbs.DeviceAttr{MaxSRQ: 1, MaxSRQWR: 100, MaxSRQSGE: 2}
	resizable := fixed
	resizable.DeviceCapFlags = uint32(DeviceSRQResize)
	assert.NoError(t, SRQAttr{MaxWR: 100}.checkDevice(SRQMaxWR, &resizable))
	assert.NoError(t, SRQAttr{MaxWR: 101, Limit: 1}.checkDevice(SRQLimit, &fixed), "MaxWR does not count")
	assert.ErrorContains(t, SRQAttr{MaxWR: 100}.checkDevice(SRQMaxWR, &fixed), "DeviceSRQResize")
	assert.ErrorContains(t, SRQAttr{MaxWR: 101}.checkDevice(SRQMaxWR, &resizable), "max_srq_wr 100")
}

func TestSRQAttrMaskString(t *testing.T) {
	assert.Equal(t, "MaxWR|Limit", (SRQMaxWR | SRQLimit).String())
	assert.Equal(t, "none", SRQAttrMask(0).String())
	assert.Equal(t, "Limit|0x4", (SRQLimit | 1<<2).String())
}
