package cq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/fdwait"
	"github.com/goverbs/goverbs/internal/life"
)

// Channel is a completion channel: where the device tells that a completion queue has
// something to poll. Several completion queues can share one. Waiting holds no
// operating system thread, unless InitAttr.Hold asks for it. Its methods may be called from
// several goroutines.
//
// Events are acknowledged by the library, at the latest when the completion queue is
// closed: there is nothing to do about it.
//
// Implements: ibv_comp_channel
type Channel struct{ s *core.Channel }

// NewChannel makes a completion channel of a device. It takes two file descriptors.
//
// Implements: ibv_create_comp_channel
func NewChannel(ctx *ibv.Context) (*Channel, error) {
	const op = "ibv_create_comp_channel"
	c := ctx.Core()
	if c == nil {
		return nil, &ibv.OpError{Op: op, Err: syscall.EINVAL, Reason: "no device: the Context is nil"}
	}
	defer runtime.KeepAlive(ctx)
	s := &core.Channel{Ctx: c}
	if err := s.Init("completion channel", func() error { return closeChannel(s) }, &c.Node); err != nil {
		return nil, &ibv.OpError{Op: op, Object: c.Name, Err: err}
	}
	fd, err := makeChannel(s)
	if err != nil {
		s.Discard()
		return nil, &ibv.OpError{Op: op, Object: c.Name, Err: err, Reason: whyNoChannel(err)}
	}
	c.Put(cverbs.CompChannelAddr(s.H), s)
	s.Ready(core.Label(uint32(fd), c))
	handle := &Channel{s}
	life.Guard(handle, &s.Node)
	return handle, nil
}

func makeChannel(s *core.Channel) (fd int, err error) {
	if s.H, fd, err = cverbs.CreateCompChannel(s.Ctx.H); err != nil {
		return 0, err
	}
	if s.Events, err = fdwait.New(fd, s.Take); err != nil {
		_ = cverbs.DestroyCompChannel(s.H) // the first error is the one to tell
	}
	return fd, err
}

func whyNoChannel(err error) string {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return "no file descriptor is left: raise the limit (ulimit -n), or have completion queues share a channel"
	}
	return ""
}

func closeChannel(s *core.Channel) error {
	s.Events.Close()
	return s.Ctx.Destroy(cverbs.CompChannelAddr(s.H), s, func() error {
		err := cverbs.DestroyCompChannel(s.H)
		if errors.Is(err, syscall.EBUSY) && s.Ctx.Gone(syscall.EIO) == nil {
			return nil // libibverbs counts completion queues that went with the device
		}
		return err
	})
}

// String names the channel and its device.
func (ch *Channel) String() string { return ch.s.String() }

// GetEvent waits for an event and returns the completion queue that has something to
// poll, or had: it may be empty by now. Each event is returned once; those of completion
// queues that a Wait waits for go there. One that fails is returned once more, for a poll
// to tell the failure. Where ctx ends first GetEvent fails with its
// cause, which after a deadline matches os.ErrDeadlineExceeded; when the channel is
// closed with an error that matches ibv.ErrClosed and os.ErrClosed; when the device has
// failed with ibv.ErrDeviceFatal.
//
// Most programs want [CQ.Wait], which has no wakeup to lose.
//
// Implements: ibv_get_cq_event, ibv_ack_cq_events
func (ch *Channel) GetEvent(ctx context.Context) (*CQ, error) {
	defer runtime.KeepAlive(ch)
	for {
		e, err := ch.s.Events.Next(ctx)
		if err != nil {
			return nil, waitFailed(&ch.s.Node, ch.s.Ctx, err)
		}
		if e.Key == nil {
			ch.s.Events.Add(e) // for the others
			return nil, waitFailed(&ch.s.Node, ch.s.Ctx, ch.s.Ctx.Failure())
		}
		if q, ok := e.Key.Handle().(*CQ); ok { // else nobody has it any more
			return q, nil
		}
	}
}

// Close destroys the channel, and ends the waits for it. While a completion queue uses it
// it changes nothing and returns an error that matches ibv.ErrBusy and names them.
// Closing again returns nil.
//
// Implements: ibv_destroy_comp_channel
func (ch *Channel) Close() error {
	defer runtime.KeepAlive(ch)
	if err := ch.s.Close(); err != nil {
		return &ibv.OpError{Op: "ibv_destroy_comp_channel", Object: ch.String(), Err: err}
	}
	return nil
}

// waitFailed is the error of a wait on object, of the device c.
func waitFailed(object *life.Node, c *core.Context, err error) error {
	e := &ibv.OpError{Op: "ibv_get_cq_event", Object: object.String(), Err: err}
	switch {
	case errors.Is(err, os.ErrClosed):
		e.Kind = ibv.ErrClosed
	case errors.Is(err, syscall.EIO):
		e.Kind = lost(c, err)
	}
	return e
}

// lost returns what is to be said of a device on which a wait has failed with err, which is
// EIO, or nil. The event that says so may still be on its way.
func lost(c *core.Context, err error) error {
	closing := c.Use() // a wait holds nothing, and others may close all of it
	if closing == nil {
		defer c.Done()
	}
	switch {
	case c.Failure() != nil, closing == nil && c.Gone(err) == nil:
		return ibv.ErrDeviceFatal
	case closing != nil:
		return ibv.ErrClosed
	}
	return nil
}

// ReqNotify has the device tell once, on the completion queue's channel, of the next
// completion that arrives from now on; with solicitedOnly of the next receive whose
// sender has set SendSolicited, or failure. It says nothing of what has arrived before:
// poll again after it.
//
// rdma_rxe does not tell a solicited wait of failed sends, nor, in Linux 6.12, of flushed
// receives: give such a wait a deadline.
//
// Implements: ibv_req_notify_cq
func (q *CQ) ReqNotify(solicitedOnly bool) error {
	defer runtime.KeepAlive(q)
	s := q.s
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return reqNotify(s, solicitedOnly)
}

func reqNotify(s *core.CQ, solicitedOnly bool) error {
	fail := func(err error, reason string) error {
		return &ibv.OpError{Op: "ibv_req_notify_cq", Object: s.String(), Err: err, Reason: reason}
	}
	switch {
	case s.Closed:
		return fail(ibv.ErrClosed, "")
	case s.Failed != nil:
		return fail(s.Failed, "")
	case s.Channel == nil:
		return fail(syscall.EINVAL, "it was created without InitAttr.Channel, so that nothing could tell")
	}
	as := core.ArmedAny
	if solicitedOnly {
		as = core.ArmedSolicited
	}
	// Before the call, for the event may be taken before it returns. Taking one lowers Armed at
	// any time, and only this raises it: to no more than what the device is asked for now, or it
	// might say that a wait may sleep which nothing wakes. Too low costs one more call.
	if s.Armed.Load() < as {
		s.Armed.Store(as)
	}
	if err := cverbs.ReqNotifyCQ(s.H, solicitedOnly); err != nil {
		s.Armed.Store(core.NotArmed)
		return fail(err, "")
	}
	return nil
}

// Wait polls, and where there is nothing waits until there is: it returns at least one
// completion, as Poll does, or an error. It is the whole loop of poll, arm, poll and
// wait, so that no wakeup is lost, and may be called from several goroutines. InitAttr.Spin
// has it poll for some time before, and InitAttr.Hold hold its thread for some. It needs
// InitAttr.Channel, and room in wcs for one completion at least.
//
// Where ctx ends first it fails with the cause, which after a deadline matches
// os.ErrDeadlineExceeded; when the completion queue is closed with ibv.ErrClosed; when it
// fails as Poll does. What it waited for is not lost by that, and what was posted still owns its memory.
//
// Implements: ibv_req_notify_cq, ibv_get_cq_event, ibv_ack_cq_events
func (q *CQ) Wait(ctx context.Context, wcs []WC) (n int, err error) {
	return q.wait(ctx, wcs, core.ArmedAny)
}

// WaitSolicited is Wait, but while it sleeps it is woken only by receives whose
// sender has set SendSolicited, and by failures as far as the device tells: see ReqNotify.
// It returns all completions that it finds.
func (q *CQ) WaitSolicited(ctx context.Context, wcs []WC) (n int, err error) {
	return q.wait(ctx, wcs, core.ArmedSolicited)
}

func (q *CQ) wait(ctx context.Context, wcs []WC, as int32) (n int, err error) {
	defer runtime.KeepAlive(q)
	s := q.s
	if len(wcs) == 0 {
		return 0, &ibv.OpError{Op: "ibv_poll_cq", Object: s.String(), Err: syscall.EINVAL,
			Reason: "there is no room for a completion: wcs is empty"}
	}
	if s.Channel == nil {
		return 0, q.ReqNotify(false) // it says so, at once and not where first there is nothing
	}
	for {
		if n, err = q.spin(ctx, wcs); n > 0 || err != nil {
			return n, err
		}
		taken := s.Taken.Load()
		if err := arm(s, as); err != nil {
			return 0, err
		}
		if n, err = q.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		switch _, err := s.Channel.Events.Wait(ctx, s, s.Hold, func() error { return mayWait(s, taken) }); {
		case err == nil:
			s.Channel.Events.Wake(s) // who waits beside, for nothing is armed any more
		case !errors.Is(err, fdwait.ErrWoken):
			return 0, waitFailed(&s.Node, s.Ctx, err)
		}
	}
}

// spin polls, at least once and for as long as the completion queue is to be polled
// before its channel is waited for.
func (q *CQ) spin(ctx context.Context, wcs []WC) (n int, err error) {
	n, err = q.Poll(wcs)
	if n > 0 || err != nil || q.s.Spin == 0 {
		return n, err
	}
	for begin := time.Now(); n == 0 && err == nil && ctx.Err() == nil && time.Since(begin) < q.s.Spin; {
		runtime.Gosched()
		n, err = q.Poll(wcs)
	}
	return n, err
}

// arm asks for an event, unless one is on its way already.
func arm(s *core.CQ, as int32) error {
	s.Mu.Lock() // so that the device was asked, if Armed says so
	defer s.Mu.Unlock()
	if s.Armed.Load() >= as {
		return nil
	}
	return reqNotify(s, as == core.ArmedSolicited)
}

// mayWait returns an error if nothing would end a wait that began now. Where an event was taken
// since the wait looked for what was taken, it may have been its own; that the queue is armed
// now tells of somebody else, who has polled later. While mayWait runs no event is taken.
func mayWait(s *core.CQ, taken uint64) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Closed || s.Failed != nil || s.Armed.Load() == core.NotArmed || s.Taken.Load() != taken {
		return fdwait.ErrWoken // to poll says why, or to arm
	}
	return nil
}

// Resize changes how many completions the queue holds; those that are in it stay. Entries
// is what was granted afterwards, at least what was asked for. Whether the work requests of
// its queue pairs fit is looked at as when one is created. An error that matches ibv.ErrNotSupported is a device's that cannot.
//
// Implements: ibv_resize_cq
func (q *CQ) Resize(entries int) error {
	defer runtime.KeepAlive(q)
	s := q.s
	fail := func(err error, reason string) error {
		return &ibv.OpError{Op: "ibv_resize_cq", Object: s.String(), Err: err, Reason: reason}
	}
	if entries < 1 || entries > int(s.Ctx.Attr.MaxCQE) {
		return fail(syscall.EINVAL, fmt.Sprintf("%d entries: the device has 1 to its max_cqe %d", entries, s.Ctx.Attr.MaxCQE))
	}
	why, err := resize(s, entries)
	switch {
	case err != nil:
		return fail(err, why)
	case why != "":
		life.Logger().Warn("completion queue can overflow", "object", s.String(), "reason", why)
	}
	return nil
}

// resize says with an error what is behind it, and else how the queue can overflow now, if
// it can.
func resize(s *core.CQ, entries int) (why string, err error) {
	s.Mu.Lock() // providers exchange the memory that a poll reads
	defer s.Mu.Unlock()
	switch how := s.Overflows(entries); {
	case s.Closed:
		return "", ibv.ErrClosed
	case s.Failed != nil:
		return "", s.Failed
	case how != "" && s.Strict:
		return "it is strict: " + how, syscall.EINVAL
	}
	granted, err := cverbs.ResizeCQ(s.H, entries)
	switch {
	case errors.Is(err, syscall.EINVAL):
		return fmt.Sprintf("it may hold more than %d completions at this moment: poll first", entries), err
	case err != nil:
		return "", err
	}
	s.Entries = granted
	return s.Overflows(granted), nil
}

// Moderate has the device tell of completions less often: when count have arrived since
// the last event, or when period has passed since the first of them, whichever is first.
// Both zero turn it off. count is at most 65535, and period as many microseconds. An error
// that matches ibv.ErrNotSupported is a device's that cannot, as rdma_rxe.
//
// Implements: ibv_modify_cq
func (q *CQ) Moderate(count int, period time.Duration) error {
	defer runtime.KeepAlive(q)
	s := q.s
	fail := func(err error, reason string) error {
		return &ibv.OpError{Op: "ibv_modify_cq", Object: s.String(), Err: err, Reason: reason}
	}
	const most = 1<<16 - 1
	us := period.Microseconds()
	if count < 0 || count > most || period < 0 || us > most || period%time.Microsecond != 0 {
		return fail(syscall.EINVAL, fmt.Sprintf("count %d and period %v: count is 0 to %d, period as many whole microseconds", count, period, most))
	}
	if err := s.Use(); err != nil {
		return fail(err, "")
	}
	defer s.Done()
	if err := cverbs.ModerateCQ(s.H, uint16(count), uint16(us)); err != nil {
		return fail(err, "")
	}
	return nil
}
