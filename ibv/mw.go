package ibv

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"weak"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/inflight"
	"github.com/goverbs/goverbs/internal/life"
)

// MWType is the type of a memory window.
//
// Implements: ibv_mw_type
type MWType uint32

const (
	// MWType1 is bound by QP.BindMW, belongs to the PD, and lasts until it is bound
	// again or closed.
	MWType1 MWType = 1 // type 1
	// MWType2 is bound by a work request, belongs to the queue pair that bound it, and
	// can be invalidated, by this side and by the peer. It is bound again only after
	// that.
	MWType2 MWType = 2 // type 2
)

// MW is a memory window: a part of a memory region, with rights and an rkey of its
// own, that is given to a peer and taken back without a call into the kernel. Its
// methods may be called from several goroutines.
//
// Revoking a window, by invalidating it, binding it again or closing it, has the peer's
// later operations fail with cq.StatusRemAccessErr, which also ends its queue pair. An
// operation that is being carried out at that moment may have been done in part.
//
// A bound window of type 2 belongs to the queue pair that bound it, which cannot be closed
// before the window is closed or invalidated.
//
// The rdma_rxe of Linux 6.1 and 6.12 holds a peer to the window's rights, but not to its
// range: the peer reaches the whole region.
//
// Implements: ibv_mw
type MW struct{ s *mwState }

type mwState struct {
	life.Node
	inflight.Used
	h      cverbs.MW
	typ    MWType
	pd     *core.PD
	handle weak.Pointer[MW]

	mu    sync.Mutex
	last  *binding // the last that was accepted and has not failed
	bound *binding // the last that has completed, if nothing has ended it
}

// binding is a bind that was accepted.
type binding struct {
	w  *mwState
	qp *life.Node // type 2: the window belongs to the queue pair that bound it
	to *core.MR   // nil if it is to nothing
	at RemoteRange

	// Under the window's mu.
	prev   *binding // the one before it, to go back to if it fails; nil once it has completed
	failed bool
	ended  bool // invalidated. A peer's invalidation may be polled before the bind itself
}

// windows finds by the rkey that a completion invalidates which bind made it.
var windows = struct {
	sync.Mutex
	byKey map[windowKey]*binding
}{byKey: map[windowKey]*binding{}}

type windowKey struct {
	ctx  *core.Context
	rkey uint32
}

// MWBind says what a memory window is bound to. mr.Region.MWBind makes one. The zero
// value but for MW ends the binding of a window of type 1, which must have one.
//
// Implements: ibv_mw_bind_info
type MWBind struct {
	MW     *MW
	Addr   uint64 // as the region's own address range counts
	Length uint64 // bytes
	// Access is what the peer may do. Remote write and atomics need a region with local
	// write, and any a region with AccessMWBind. With AccessZeroBased, which is for type 2, the
	// peer's addresses begin at 0, as MW.Remote says.
	Access AccessFlags

	mr *core.MRRef
}

// NewMWBind is for the other packages of this module.
func NewMWBind(mw *MW, mr *core.MRRef, addr, length uint64, access AccessFlags) MWBind {
	return MWBind{MW: mw, Addr: addr, Length: length, Access: access, mr: mr}
}

// AllocMW makes a memory window, which is bound to nothing.
//
// Implements: ibv_alloc_mw
func (pd *PD) AllocMW(typ MWType) (*MW, error) {
	fail := func(err error, reason string) (*MW, error) {
		return nil, &OpError{Op: "ibv_alloc_mw", Object: pd.s.String(), Err: err, Reason: reason}
	}
	if typ != MWType1 && typ != MWType2 {
		return fail(syscall.EINVAL, fmt.Sprintf("MWType %d: use MWType1 or MWType2", typ))
	}
	w := &mwState{typ: typ, pd: pd.s}
	if err := w.Init("MW", w.destroy, &pd.s.Node); err != nil {
		return fail(err, "")
	}
	if err := w.Enter(); err != nil {
		w.Discard()
		return fail(err, "")
	}
	h, rkey, err := cverbs.AllocMW(pd.s.H, int32(typ))
	if err != nil {
		w.Leave()
		w.Discard()
		return fail(err, "")
	}
	w.h, w.last = h, &binding{w: w, at: RemoteRange{RKey: rkey}}
	mw := &MW{w}
	w.handle = weak.Make(mw)
	w.Reap(w.mayReap)
	w.Ready(fmt.Sprintf("of %v, index %#x of %s", typ, rkey>>8, pd.s.Ctx.Name))
	life.Guard(mw, &w.Node)
	return mw, nil
}

// Type returns the window's type.
func (mw *MW) Type() MWType { return mw.s.typ }

// Remote returns what to give to the peer: the range and the rkey of the last bind that
// was posted and has not failed. It is of no use before that bind has completed.
func (mw *MW) Remote() RemoteRange {
	mw.s.mu.Lock()
	defer mw.s.mu.Unlock()
	return mw.s.last.at
}

// Bound reports whether a bind has completed and nothing has ended it: neither an
// invalidation whose completion was polled, here or by the peer, nor another bind.
func (mw *MW) Bound() bool { return mw.s.isBound() }

// String names the window and its device.
func (mw *MW) String() string { return mw.s.String() }

// Close ends the window: the peer cannot use it any more. While a bind or an
// invalidation of it is in flight it changes nothing and returns an error that matches
// ErrBusy; a call that posts a bind it waits for. Closing again returns nil.
//
// Implements: ibv_dealloc_mw
func (mw *MW) Close() error {
	defer runtime.KeepAlive(mw)
	return closeError("ibv_dealloc_mw", mw.String(), mw.s.Close())
}

func (w *mwState) mayReap() life.Verdict {
	if v := core.MayReap(&w.Node, &w.Used); v.When != life.Now {
		return v
	}
	if w.isBound() { // nothing is in flight any more that could change it
		return life.Verdict{When: life.Never, Reason: "a peer may be using it: it is bound"}
	}
	return life.Verdict{}
}

func (w *mwState) isBound() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound != nil
}

func (w *mwState) destroy() error {
	return w.CloseUsed(func() error {
		err := w.pd.Ctx.Gone(cverbs.DeallocMW(w.h))
		if err == nil {
			defer w.lock()()
			w.unbind()
		}
		return err
	})
}

// lock locks what the methods below change.
func (w *mwState) lock() (unlock func()) {
	windows.Lock()
	w.mu.Lock()
	return func() { w.mu.Unlock(); windows.Unlock() }
}

func (b *binding) key() windowKey { return windowKey{b.w.pd.Ctx, b.at.RKey} }

// forget has the rkey not lead to this bind any more.
func (b *binding) forget() {
	if windows.byKey[b.key()] == b {
		delete(windows.byKey, b.key())
	}
}

func (w *mwState) unbind() {
	if w.bound != nil {
		w.Detach(&w.bound.to.Node)
		if w.bound.qp != nil {
			w.Detach(w.bound.qp)
		}
		w.bound.forget()
		w.bound = nil
	}
}

// Done makes the window a child of the region that it is bound to, which cannot be
// closed before it.
func (b *binding) Done(ok bool) {
	if !ok {
		b.Refused()
		return
	}
	defer b.w.lock()()
	b.prev = nil
	b.w.unbind()
	if b.to != nil && !b.ended {
		b.w.bound = b
		_ = b.w.AttachInUse(&b.to.Node) // a work request holds it
		if b.qp != nil {
			_ = b.w.AttachInUse(b.qp) // it is not destroyed before it has asked
		}
	}
}

// Refused has the window answer to the rkey again that it had before.
func (b *binding) Refused() {
	defer b.w.lock()()
	b.failed = true
	b.forget()
	for b.w.last.failed {
		b.w.last = b.w.last.prev
	}
	cverbs.SetMWRKey(b.w.h, b.w.last.at.RKey)
}

// posted notes that the call that posts the bind is over.
func (b *binding) posted() { b.w.Done() }

// bindsPosted notes that the device has what was built, or none of it: the provider has read
// the old rkeys of the windows of type 2.
func (q *qpState) bindsPosted() {
	for _, b := range q.binds {
		b.w.mu.Lock()
		cverbs.SetMWRKey(b.w.h, b.w.last.at.RKey)
		b.w.mu.Unlock()
		b.posted()
	}
	q.binds = q.binds[:0]
}

// end notes an invalidation.
func (b *binding) end() {
	defer b.w.lock()()
	b.ended = true
	b.forget()
	if b.w.bound == b {
		b.w.unbind()
	}
}

// endBindings ends what is bound to the queue pair.
func (q *qpState) endBindings() {
	var ours []*binding
	windows.Lock()
	for _, b := range windows.byKey {
		if b.qp == &q.Node {
			ours = append(ours, b)
		}
	}
	windows.Unlock()
	for _, b := range ours {
		b.end()
	}
}

func bindingOf(ctx *core.Context, rkey uint32) *binding {
	windows.Lock()
	defer windows.Unlock()
	return windows.byKey[windowKey{ctx, rkey}]
}

// Invalidated notes that a peer has invalidated an rkey, and returns the window that
// had it, or nil. It is for the other packages of this module.
func Invalidated(ctx *core.Context, rkey uint32) *MW {
	b := bindingOf(ctx, rkey)
	if b == nil {
		return nil
	}
	b.end()
	return b.w.handle.Value()
}

// NoteInvalidation notes what a receive that is not told to the program has invalidated.
// It is for the other packages of this module.
func NoteInvalidation(q *core.CQ, wc *cverbs.WC) {
	if wc.Status == 0 && wc.Flags&q.WithInv != 0 {
		Invalidated(q.Ctx, wc.Imm)
	}
}

// invalidation is a LOCAL_INV in flight.
type invalidation struct{ of *binding }

func (e invalidation) Refused() {}
func (e invalidation) Done(ok bool) {
	if ok {
		e.of.end()
	}
}

// useInvalidated has the slot that is being built hold the window of rkey, if it is ours.
func (q *qpState) useInvalidated(rkey uint32) {
	if b := bindingOf(q.pd.Ctx, rkey); b != nil && q.queue.Send.Use(&b.w.Used) {
		q.hasBound.Store(true)
		q.queue.Send.Effect(invalidation{b})
	}
}

// useBind checks a bind and has the slot that is being built hold its window and its
// region.
func (q *qpState) useBind(b *MWBind, typ MWType) error {
	switch {
	case b == nil || b.MW == nil || b.MW.s == nil:
		return refuse(syscall.EINVAL, "a bind needs a memory window: MWBind.MW is nil")
	case b.MW.s.typ != typ && typ == MWType1:
		return refuse(syscall.EINVAL, "%v is bound by a work request: post BindMW", b.MW)
	case b.MW.s.typ != typ:
		return refuse(syscall.EINVAL, "%v is bound by QP.BindMW, not by a work request", b.MW)
	case b.MW.s.pd != q.pd:
		return refuse(syscall.EINVAL, "%v belongs to another PD than the QP", b.MW)
	case !q.queue.Send.Use(&b.MW.s.Used):
		return refuseClosed(b.MW)
	case b.mr != nil:
	case typ == MWType2 || b.Length != 0:
		return refuse(syscall.EINVAL, "MWBind names no region: make it with mr.Region.MWBind")
	default:
		if err := b.toNothing(); err != nil {
			return err
		}
	}
	mr, needs := b.mr.MR, AccessMWBind
	if b.Access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 {
		needs |= AccessLocalWrite
	}
	const rights = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessZeroBased
	switch missing := needs &^ AccessFlags(mr.Access); {
	case b.Access&^rights != 0:
		return refuse(syscall.EINVAL, "MWBind.Access: %v is not for a window", b.Access&^rights)
	case typ == MWType1 && b.Access&AccessZeroBased != 0:
		return refuse(syscall.EINVAL, "MWBind.Access: %v is for windows of type 2", AccessZeroBased)
	case mr.PD != q.pd:
		return refuse(syscall.EINVAL, "%v belongs to another PD than the QP", mr)
	case missing != 0:
		return refuse(syscall.EACCES, "%v was registered without %v, which a window with %v needs", mr, missing, b.Access)
	case b.Addr < mr.Addr || b.Length > uint64(mr.Len) || b.Addr-mr.Addr > uint64(mr.Len)-b.Length:
		return refuse(syscall.EINVAL, "the window's %d bytes from %#x are not inside %v", b.Length, b.Addr, mr)
	case !q.queue.Send.Use(&mr.Used):
		return refuseClosed(mr)
	}
	return nil
}

// startBind has the window answer to a new rkey, and returns what to tell when the bind
// is done or refused. With a window of type 2 qp is whose it will be. Until posted is called
// the window is not deallocated, also if the bind has completed: who posts it, or the provider,
// still writes to it.
func startBind(m *MWBind, qp *life.Node) (*binding, error) {
	w := m.MW.s
	if err := w.Use(); err != nil {
		if errors.Is(err, ErrClosed) {
			err = refuseClosed(m.MW)
		}
		return nil, err
	}
	defer w.lock()()
	// For type 1 the provider chooses the rkey, by the rule that type 2 leaves to the program.
	rkey := cverbs.IncRKey(w.last.at.RKey)
	b := &binding{w: w, qp: qp, at: RemoteRange{m.Addr, m.Length, rkey}, prev: w.last}
	if m.Access&AccessZeroBased != 0 {
		b.at.Addr = 0
	}
	w.last = b
	if m.Length > 0 {
		b.to = m.mr.MR
		windows.byKey[b.key()] = b
	}
	return b, nil
}

// toNothing completes a bind that names no region, to end the binding that the window
// has: some providers want a region all the same.
func (m *MWBind) toNothing() error {
	w := m.MW.s
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.to == nil {
		return refuse(syscall.EINVAL, "%v is bound to nothing already", m.MW)
	}
	*m = MWBind{MW: m.MW, Addr: w.last.to.Addr, mr: &core.MRRef{MR: w.last.to}}
	return nil
}

func (q *qpState) fillBind(wr *SendWR, to *cverbs.SendWR) error {
	if err := q.useBind(wr.Bind, MWType2); err != nil {
		return err
	}
	if len(wr.SGEs) > 0 {
		return refuse(syscall.EINVAL, "a bind has no SGEs")
	}
	b, w := wr.Bind, wr.Bind.MW.s
	if slices.ContainsFunc(q.binds, func(b *binding) bool { return b.w == w }) {
		return refuse(syscall.EINVAL, "%v is bound twice in one post: post the second bind by itself", b.MW)
	}
	bind, err := startBind(b, &q.Node)
	if err != nil {
		return err
	}
	q.hasBound.Store(true)
	q.queue.Send.Effect(bind)
	q.binds = append(q.binds, bind)
	to.SetBind(cverbs.MWAddr(w.h), bind.at.RKey, cverbs.MRAddr(b.mr.H), b.Addr, b.Length, uint32(b.Access))
	return nil
}

// BindMW binds a memory window of type 1. As a post it is accepted, not done, when it
// returns: the completion of wrID says that. The window's Remote is the new one.
// Length zero ends the binding. Flags may be SendSignaled and SendFence. The error is a
// *PostError.
//
// Implements: ibv_bind_mw
func (qp *QP) BindMW(wrID uint64, flags SendFlags, b MWBind) error {
	defer runtime.KeepAlive(qp)
	defer runtime.KeepAlive(b) // and the handles in it, until they are counted as used
	q := qp.s
	q.sq.mu.Lock()
	defer q.sq.mu.Unlock()
	const op = "ibv_bind_mw"
	if err := q.maySend("a bind"); err != nil {
		return newPostError(op, q.name, 0, 0, err)
	}
	if accepted, bad, err := q.bindType1(wrID, flags, &b); err != nil {
		return newPostError(op, q.name, accepted, bad, err)
	}
	return nil
}

func (q *qpState) bindType1(wrID uint64, flags SendFlags, b *MWBind) (accepted, bad int, err error) {
	ring := &q.queue.Send
	if opRules[OpBindMW].types>>q.typ&1 == 0 {
		return 0, 0, refuse(syscall.EOPNOTSUPP, "a QP of type %v has no %v", q.typ, OpBindMW)
	}
	if flags&^(SendSignaled|SendFence) != 0 {
		return 0, 0, refuse(syscall.EINVAL, "a bind has no flags but SendSignaled and SendFence, and not %v", flags)
	}
	if ring.Begin(1) == 0 {
		return 0, 0, full(ring)
	}
	token := ring.Start(wrID, q.signalAll || flags&SendSignaled != 0)
	if err := q.useBind(b, MWType1); err != nil {
		return 0, 0, err
	}
	bind, err := startBind(b, nil)
	if err != nil {
		return 0, 0, err
	}
	defer bind.posted()
	q.hasBound.Store(true)
	ring.Effect(bind)
	ring.Keep()
	if ring.Commit() == 0 {
		return 0, 0, errRegionClosed
	}
	err = cverbs.BindMW(q.h, b.MW.s.h, uint64(token), uint32(flags), b.mr.H, b.Addr, b.Length, uint32(b.Access))
	if err == nil {
		return 1, 0, nil
	}
	if slices.ContainsFunc(notQueued, func(e syscall.Errno) bool { return errors.Is(err, e) }) {
		q.sendCQ.Mu.Lock()
		defer q.sendCQ.Mu.Unlock()
		ring.Refused(0)
		return 0, 0, refusal(err)
	}
	// As with a send of which the provider names none: it may be queued all the same.
	return 1, cverbs.None, &OpError{Err: err, Reason: "the bind may be with the device all the same, and its completion may come"}
}

// notQueued are the errnos by which ibv_bind_mw says that it has queued nothing.
var notQueued = []syscall.Errno{
	syscall.EOPNOTSUPP, syscall.EINVAL, syscall.EPERM, syscall.ENOMEM, syscall.ENOSPC, syscall.EAGAIN,
}
