package ibv

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/internal/cverbs"
)

// SRQInitAttr says how large a shared receive queue to create.
//
// Implements: ibv_srq_init_attr
type SRQInitAttr struct {
	MaxWR  uint32 // receives outstanding, at least one
	MaxSGE uint32 // scatter/gather elements of a receive
}

// Check refuses a queue that holds nothing. Whether the device has room for it shows
// only when it is created.
func (a SRQInitAttr) Check() error {
	if a.MaxWR == 0 {
		return errors.New("SRQInitAttr.MaxWR is 0: a shared receive queue holds at least one receive")
	}
	return nil
}

// String describes the shared receive queue in words.
func (a SRQInitAttr) String() string {
	return fmt.Sprintf("shared receive queue of %d WRs with %d SGEs", a.MaxWR, a.MaxSGE)
}

// checkDevice refuses what the device says that it does not have.
func (a SRQInitAttr) checkDevice(d *cverbs.DeviceAttr) error {
	switch {
	case d.MaxSRQ == 0:
		return errors.New("the device has no shared receive queues")
	case int64(a.MaxWR) > int64(d.MaxSRQWR):
		return fmt.Errorf("SRQInitAttr.MaxWR %d is above the device's max_srq_wr %d", a.MaxWR, d.MaxSRQWR)
	case int64(a.MaxSGE) > int64(d.MaxSRQSGE):
		return fmt.Errorf("SRQInitAttr.MaxSGE %d is above the device's max_srq_sge %d", a.MaxSGE, d.MaxSRQSGE)
	}
	return nil
}

// SRQAttr holds the attributes of a shared receive queue. When modifying, an
// [SRQAttrMask] beside it says which fields count.
//
// Implements: ibv_srq_attr
type SRQAttr struct {
	MaxWR  uint32 // SRQMaxWR: receives outstanding
	MaxSGE uint32 // set by queries only: scatter/gather elements of a receive
	// Limit arms an event that is raised once, when fewer receives than this are left:
	// SRQLimit. 0 disarms it.
	Limit uint32
}

// SRQAttrMask names the fields of an [SRQAttr] that a call sets.
//
// Implements: ibv_srq_attr_mask
type SRQAttrMask uint32

const (
	SRQMaxWR SRQAttrMask = 1 << 0 // on devices that have DeviceSRQResize
	SRQLimit SRQAttrMask = 1 << 1
)

var srqAttrNames = []string{0: "MaxWR", 1: "Limit"}

// String joins the names of the attributes with "|"; "none" where none is set.
func (m SRQAttrMask) String() string { return bitNames(uint64(m), srqAttrNames, "none") }

// check refuses what a shared receive queue that now holds maxWR receives cannot have.
func (a SRQAttr) check(mask SRQAttrMask, maxWR uint32) error {
	switch unknown := mask &^ (SRQMaxWR | SRQLimit); {
	case unknown != 0:
		return fmt.Errorf("there is no attribute %v of a shared receive queue to modify: use SRQMaxWR and SRQLimit", unknown)
	case mask&SRQMaxWR == 0:
	case a.MaxWR == 0:
		return errors.New("SRQAttr.MaxWR is 0: a shared receive queue holds at least one receive")
	default:
		maxWR = a.MaxWR
	}
	if mask&SRQLimit != 0 && a.Limit > maxWR {
		return fmt.Errorf("SRQAttr.Limit %d is above the %d receives that the queue holds: it would be reached at once", a.Limit, maxWR)
	}
	return nil
}

var errNoSRQResize = errors.New("the device cannot resize a shared receive queue: SRQMaxWR needs DeviceSRQResize")

// checkDevice refuses what the device says that it does not have.
func (a SRQAttr) checkDevice(mask SRQAttrMask, d *cverbs.DeviceAttr) error {
	if mask&SRQMaxWR == 0 {
		return nil
	}
	if DeviceCapFlags(d.DeviceCapFlags)&DeviceSRQResize == 0 {
		return errNoSRQResize
	}
	return SRQInitAttr{MaxWR: a.MaxWR}.checkDevice(d)
}
