package ibv

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
)

// opRule says what an operation has.
type opRule struct {
	types uint8 // bits of the QP types that have it
	kind  opKind
	// imm says that the WR's imm_data is its Imm, rkey that it is its RKey.
	imm, rkey bool
	// local is the right that the regions of its SGEs need.
	local AccessFlags
}

// opKind says which members of C's unions an operation has.
type opKind uint8

const (
	kindMessage opKind = iota // none, or on UD the address
	kindBeside                // the same, with something beside the message
	kindRemote
	kindAtomic
	kindInvalidate
	kindBind
)

// Bits of QP types.
const (
	rcOnly    = 1 << QPTypeRC
	connected = rcOnly | 1<<QPTypeUC
	anyType   = connected | 1<<QPTypeUD
)

var opRules = [16]opRule{
	OpSend:        {types: anyType},
	OpSendImm:     {types: anyType, kind: kindBeside, imm: true},
	OpSendInv:     {types: rcOnly, kind: kindBeside, rkey: true},
	OpWrite:       {types: connected, kind: kindRemote},
	OpWriteImm:    {types: connected, kind: kindRemote, imm: true},
	OpRead:        {types: rcOnly, kind: kindRemote, local: AccessLocalWrite},
	OpCompareSwap: {types: rcOnly, kind: kindAtomic, local: AccessLocalWrite},
	OpFetchAdd:    {types: rcOnly, kind: kindAtomic, local: AccessLocalWrite},
	OpLocalInv:    {types: connected, kind: kindInvalidate, rkey: true},
	OpBindMW:      {types: connected, kind: kindBind},
}

const knownSendFlags = SendFence | SendSignaled | SendSolicited | SendInline

// fillSends writes up to room work requests to scratch and to the ring.
func (q *qpState) fillSends(wrs []SendWR, room int) (n int, err error) {
	for n < room {
		if k := q.fillRow(wrs[n:room], n); k > 0 {
			n += k
			continue
		}
		if err := q.fillSend(&wrs[n], n); err != nil {
			return n, err
		}
		q.queue.Send.Keep()
		n++
	}
	return n, nil
}

// plain are the flags of the work requests that fillRow takes, and plainOp that it takes
// the operation.
const (
	plainFlags = uint64(SendFence | SendSignaled | SendSolicited)
	plainOp    = uint64(1 << 32) // no flag
)

// setPlain sets which operations fillRow takes, by their flags: those that have nothing
// but SGEs and perhaps a remote range, and that need no more checks than it makes. The
// caller holds the post lock.
func (q *qpState) setPlain() {
	q.plain = [16]uint64{}
	if q.typ == QPTypeUD {
		return
	}
	for _, op := range []Opcode{OpSend, OpWrite, OpRead} {
		rule := &opRules[op]
		if rule.types>>q.typ&1 != 0 && (rule.local == 0 || q.maxRdAtomic > 0) {
			q.plain[op] = plainOp | plainFlags&uint64(q.sendFlags)
		}
	}
}

// fillRow does what fillSend does, for the most common work requests and in a fraction
// of the time: it writes those at the beginning of wrs that are plain and whose SGEs
// are all of one region, and returns how many. Whatever else there is to say about a
// work request is fillSend's.
func (q *qpState) fillRow(wrs []SendWR, place int) (n int) {
	if len(wrs[0].SGEs) == 0 {
		return 0
	}
	ref := wrs[0].SGEs[0].mr
	if ref == nil || ref.PD != q.pd || ref.Refusing() {
		return 0
	}
	row, pos, signaled := q.queue.Send.Row()
	for ; n < len(wrs) && n < row.Len(); n++ {
		wr := &wrs[n]
		to := q.fillPlain(wr, place+n, ref)
		if to == nil {
			break
		}
		if q.signalAll || wr.Flags&SendSignaled != 0 {
			signaled = pos + uint32(n) + 1
		}
		to.WRID = uint64(row.Put(n, wr.WRID, signaled, &ref.Used))
	}
	q.queue.Send.EndRow(n, &ref.Used)
	return n
}

// fillPlain writes a work request to its place in scratch, but for its wr_id, if it is
// plain and has only SGEs of ref; else it returns nil.
func (q *qpState) fillPlain(wr *SendWR, place int, ref *core.MRRef) *cverbs.SendWR {
	op, flags, from := wr.Opcode, wr.Flags, wr.SGEs
	if op > 15 || (uint64(flags)|plainOp)&^q.plain[op] != 0 || wr.Inline != nil ||
		len(from) == 0 || len(from) > int(q.cap.MaxSendSGE) {
		return nil
	}
	to, length := &q.sq.scratch.Items[place], uint64(0)
	sges := q.sq.scratch.SGEs(place)[:len(from)]
	for i := range from {
		sge := &from[i]
		if sge.mr != ref {
			return nil
		}
		sges[i] = cverbs.SGE{Addr: sge.Addr, Length: sge.Length, LKey: sge.LKey}
		length += uint64(sge.Length)
	}
	switch {
	case op == OpSend:
		to.ClearUnions()
	case length > wr.Remote.Length, opRules[op].local&^AccessFlags(ref.Access) != 0:
		return nil
	default:
		to.SetRemote(wr.Remote.Addr, wr.Remote.RKey)
	}
	to.NumSGE, to.Opcode, to.Flags, to.Imm = int32(len(from)), uint32(op)-1, uint32(flags), 0
	return to
}

// fillSend writes a work request to its place in scratch and builds its slot.
func (q *qpState) fillSend(wr *SendWR, place int) error {
	rule, flags := &opRules[wr.Opcode&15], wr.Flags
	if wr.Opcode > 15 || rule.types>>q.typ&1 == 0 || flags&^q.sendFlags != 0 {
		return q.refuseSend(wr)
	}
	ring, scratch := &q.queue.Send, q.sq.scratch
	to := &scratch.Items[place]
	to.WRID = uint64(ring.Start(wr.WRID, q.signalAll || flags&SendSignaled != 0))
	n, length, err := len(wr.SGEs), uint64(0), error(nil)
	if wr.Inline == nil && flags&SendInline == 0 {
		length, err = fillSGEs(&ring.Slots, scratch.SGEs(place), wr.SGEs, q.pd, rule.local, "MaxSendSGE", q.cap.MaxSendSGE)
	} else {
		flags |= SendInline
		n, length, err = q.fillInline(wr, place)
	}
	if err != nil {
		return err
	}
	to.NumSGE, to.Opcode, to.Flags, to.Imm = int32(n), uint32(wr.Opcode)-1, uint32(flags), 0
	if rule.kind == kindMessage && q.typ != QPTypeUD {
		to.ClearUnions()
		return nil
	}
	return q.fillUnions(wr, rule, to, length)
}

// fillUnions writes what is not in every work request. Some providers refuse what is
// left from an earlier one, so each case writes or clears all of it.
func (q *qpState) fillUnions(wr *SendWR, rule *opRule, to *cverbs.SendWR, length uint64) error {
	switch {
	case rule.imm:
		to.Imm = cverbs.ToBE32(wr.Imm)
	case rule.rkey:
		to.Imm = wr.RKey
	}
	switch {
	case q.typ == QPTypeUD:
		return q.fillDatagram(wr, to, length)
	case rule.kind == kindRemote:
		return q.fillRemote(wr, rule, to, length)
	case rule.kind == kindAtomic:
		return q.fillAtomic(wr, to, length)
	case rule.kind == kindBind:
		return q.fillBind(wr, to)
	case rule.kind == kindInvalidate:
		if len(wr.SGEs) > 0 {
			return refuse(syscall.EINVAL, "an invalidation has no SGEs")
		}
		q.useInvalidated(wr.RKey)
	}
	to.ClearUnions()
	return nil
}

// refuseSend says why the QP cannot have the operation or its flags.
func (q *qpState) refuseSend(wr *SendWR) error {
	switch unknown := wr.Flags &^ knownSendFlags; {
	case wr.Opcode > 15 || opRules[wr.Opcode].types == 0:
		return refuse(syscall.EINVAL, "SendWR.Opcode %d is not an operation", wr.Opcode)
	case opRules[wr.Opcode].types>>q.typ&1 == 0:
		return refuse(syscall.EOPNOTSUPP, "a QP of type %v has no %v", q.typ, wr.Opcode)
	case unknown != 0:
		return refuse(syscall.EINVAL, "SendWR.Flags has unknown bits %#x", uint32(unknown))
	}
	return refuse(syscall.EINVAL, "SendFence goes with RC only, this QP is %v", q.typ)
}

// fillInline has the data of a work request copied during the post, from Go memory or
// from where its SGEs say.
func (q *qpState) fillInline(wr *SendWR, place int) (sges int, length uint64, err error) {
	rule, to := &opRules[wr.Opcode], q.sq.scratch.SGEs(place)
	sges = len(wr.SGEs)
	switch {
	case rule.local != 0 || rule.kind == kindInvalidate || rule.kind == kindBind:
		return 0, 0, refuse(syscall.EINVAL, "%v sends no data that could be inline", wr.Opcode)
	case wr.Inline == nil:
		if length, err = fillSGEs(&q.queue.Send.Slots, to, wr.SGEs, q.pd, 0, "MaxSendSGE", q.cap.MaxSendSGE); err == nil {
			err = inlineSGEs(to, wr.SGEs)
		}
	case sges > 0:
		return 0, 0, refuse(syscall.EINVAL, "SendWR has both SGEs and Inline: use one")
	default:
		length = uint64(len(wr.Inline))
	}
	if err == nil && length > uint64(q.cap.MaxInlineData) {
		err = refuse(syscall.EINVAL, "%d bytes inline are more than the MaxInlineData %d that was granted", length, q.cap.MaxInlineData)
	}
	if err == nil && len(wr.Inline) > 0 {
		data := q.sq.scratch.Inline(place)
		copy(data, wr.Inline)
		to[0] = cverbs.SGE{Addr: uint64(cverbs.Addr(&data[0])), Length: uint32(length)}
		sges = 1
	}
	return sges, length, err
}

// inlineSGEs has SGEs in scratch name this process's own memory: the provider copies from
// there, whatever the region's address range is, and nobody checks it.
func inlineSGEs(to []cverbs.SGE, sges []SGE) error {
	for i := range sges {
		sge := &sges[i]
		switch {
		case sge.Length == 0:
			continue
		case sge.mr == nil && sge.Addr == 0:
			return refuse(syscall.EFAULT, "SGE %d is inline and has no address", i)
		case sge.mr == nil:
			continue // filled by hand, at the program's own risk
		}
		mr := sge.mr.MR
		off, length := sge.Addr-mr.Addr, uint64(mr.Len)
		switch {
		case mr.Local == 0:
			return refuse(syscall.EINVAL, "SGE %d is inline, and %v is memory that this process cannot see", i, mr)
		case sge.Addr < mr.Addr || off > length || uint64(sge.Length) > length-off:
			return refuse(syscall.EFAULT, "SGE %d is inline, and its %d bytes from %#x are not inside %v", i, sge.Length, sge.Addr, mr)
		}
		to[i].Addr = mr.Local + off
	}
	return nil
}

func (q *qpState) fillRemote(wr *SendWR, rule *opRule, to *cverbs.SendWR, length uint64) error {
	if length > wr.Remote.Length {
		return refuse(syscall.EINVAL, "the SGEs are %d bytes together, and SendWR.Remote only %d", length, wr.Remote.Length)
	}
	if rule.local != 0 && q.maxRdAtomic == 0 {
		return q.refuseRdAtomic(wr)
	}
	to.SetRemote(wr.Remote.Addr, wr.Remote.RKey)
	return nil
}

func (q *qpState) refuseRdAtomic(wr *SendWR) error {
	return refuse(syscall.EINVAL, "%v on a QP with MaxRdAtomic 0 would never complete: set it on the way to RTS", wr.Opcode)
}

func (q *qpState) fillAtomic(wr *SendWR, to *cverbs.SendWR, length uint64) error {
	switch {
	case len(wr.SGEs) != 1 || length != 8:
		return refuse(syscall.EINVAL, "%v has a result of 8 bytes in one SGE, not %d bytes in %d", wr.Opcode, length, len(wr.SGEs))
	case wr.Remote.Length < 8:
		return refuse(syscall.EINVAL, "%v reaches 8 bytes, and SendWR.Remote has only %d", wr.Opcode, wr.Remote.Length)
	case wr.Remote.Addr%8 != 0:
		return refuse(syscall.EINVAL, "%v on remote address %#x, which is no multiple of 8", wr.Opcode, wr.Remote.Addr)
	case q.maxRdAtomic == 0:
		return q.refuseRdAtomic(wr)
	}
	to.SetAtomic(wr.Remote.Addr, wr.CompareAdd, wr.Swap, wr.Remote.RKey)
	return nil
}

func (q *qpState) fillDatagram(wr *SendWR, to *cverbs.SendWR, length uint64) error {
	d := &wr.Datagram
	switch mtu := q.mtu.Load(); {
	case d.AH == nil || d.AH.s == nil:
		return refuse(syscall.EINVAL, "a send on a UD QP needs SendWR.Datagram: address handle, QPN and QKey")
	case d.AH.s.pd != q.pd:
		return refuse(syscall.EINVAL, "%v belongs to another PD than the QP", d.AH)
	case d.QPN > maxUint24:
		return refuse(syscall.EINVAL, "Datagram.QPN is %#x, above its largest value %#x", d.QPN, uint32(maxUint24))
	case mtu != 0 && length > uint64(mtu):
		return refuse(syscall.EINVAL, "a datagram of %d bytes is longer than the port's active MTU %d, and would be lost", length, mtu)
	case !q.queue.Send.Use(&d.AH.s.Used):
		return refuseClosed(d.AH)
	}
	to.SetUD(cverbs.AHAddr(d.AH.s.h), d.QPN, d.QKey)
	return nil
}

// recvFiller writes receives to scratch and to slots.
type recvFiller struct {
	slots   *inflight.Slots
	scratch *cverbs.Scratch[cverbs.RecvWR]
	pd      *core.PD
	limit   string // what maxSGE is called
	maxSGE  uint32
	least   uint64 // bytes that a receive must have room for
}

// fill writes up to room receives.
func (f *recvFiller) fill(wrs []RecvWR, room int) (n int, err error) {
	for ; n < room; n++ {
		wr, to := &wrs[n], &f.scratch.Items[n]
		to.WRID = uint64(f.slots.Start(wr.WRID, true))
		to.NumSGE = int32(len(wr.SGEs))
		length, err := fillSGEs(f.slots, f.scratch.SGEs(n), wr.SGEs, f.pd, AccessLocalWrite, f.limit, f.maxSGE)
		if err != nil {
			return n, err
		}
		if length < f.least {
			return n, refuse(syscall.EINVAL, "a receive of %d bytes on a UD QP: the first %d are for the GRH, and the datagram follows", length, f.least)
		}
		f.slots.Keep()
	}
	return n, nil
}

// fillSGEs writes SGEs to scratch and has the slot that is being built use their
// regions. It returns how many bytes they are together.
func fillSGEs(s *inflight.Slots, to []cverbs.SGE, sges []SGE, pd *core.PD, need AccessFlags, limit string, most uint32) (length uint64, err error) {
	if len(sges) > int(most) || len(sges) > len(to) {
		return 0, refuse(syscall.EINVAL, "%d SGEs are more than the %s %d that was granted", len(sges), limit, most)
	}
	var last *core.MRRef // most work requests use one region
	for i := range sges {
		sge := &sges[i]
		to[i] = cverbs.SGE{Addr: sge.Addr, Length: sge.Length, LKey: sge.LKey}
		length += uint64(sge.Length)
		if sge.mr == last || sge.mr == nil {
			continue
		}
		last = sge.mr
		mr := last.MR
		if mr.PD != pd || need&^AccessFlags(mr.Access) != 0 || !s.Use(&mr.Used) {
			return 0, refuseRegion(mr, pd, need)
		}
	}
	return length, nil
}

// refuseRegion says why a work request cannot have a region.
func refuseRegion(mr *core.MR, pd *core.PD, need AccessFlags) error {
	switch {
	case mr.PD != pd:
		return refuse(syscall.EINVAL, "%v belongs to another PD than the queue", mr)
	case need&^AccessFlags(mr.Access) != 0:
		return refuse(syscall.EACCES, "%v was registered without %v, which is needed to write to it", mr, need)
	}
	return refuseClosed(mr)
}

func refuseClosed(object fmt.Stringer) error {
	return &OpError{Kind: ErrClosed, Err: syscall.EINVAL, Reason: fmt.Sprintf("%v was closed, or is being closed", object)}
}
