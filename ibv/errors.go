package ibv

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
	"github.com/goverbs/goverbs/internal/life"
)

// Errors that a program may want to branch on, for use with errors.Is. An
// *OpError matches both its sentinel and the errno that C returned.
var (
	// ErrClosed says that the object was closed before the call. It matches os.ErrClosed.
	ErrClosed = life.ErrClosed
	// ErrBusy says that an object cannot be closed yet; errno EBUSY.
	ErrBusy = errors.New("in use")
	// ErrQueueFull says that a work queue has no room for the work request. It is
	// ordinary back-pressure: poll the completion queue and post again. Only where all
	// that is posted is unsignaled, which the error says, will no poll make room.
	ErrQueueFull = errors.New("queue full")
	// ErrNotSupported says that this device, or this rdma-core, does not have the
	// operation; errno EOPNOTSUPP.
	ErrNotSupported = errors.New("not supported")
	// ErrNoDevice says that there is no such device.
	ErrNoDevice = errors.New("no such RDMA device")
	// ErrNoSubsystem says that the kernel has no RDMA subsystem loaded; errno ENOSYS.
	ErrNoSubsystem = errors.New("no RDMA subsystem")
	// ErrMemlock says that memory could not be registered because the process may
	// not lock so much; errno ENOMEM, or EPERM where it may lock none.
	ErrMemlock = errors.New("memory lock limit too small")
	// ErrDeviceFatal says that the device has failed for good, or was removed; errno EIO.
	// All that can be done with what was made from it is to close it.
	ErrDeviceFatal = core.ErrDeviceFatal
	// ErrUnsupportedBuild says that the program was built without cgo or for a
	// system that has no verbs.
	ErrUnsupportedBuild = cverbs.ErrNoCgo
)

// OpError is the error of every call that stands for a verb or another call of the
// system. Parsing and checking plain values returns plain errors; a completion has
// its own. It is a value like others and holds no handle.
type OpError struct {
	// Op is the C function that failed, or that would have been called:
	// "ibv_create_qp"; or, of a call that stands for none or for several, what it
	// did: "draining".
	Op string
	// Object is what it was called on: "QP 0x11 of rxe0".
	Object string
	// Kind is the sentinel of this package that fits, or nil.
	Kind error
	// Err is the cause: a syscall.Errno where C was called or would have answered
	// with one.
	Err error
	// Reason says why and what to do, where that is known.
	Reason string
}

func (e *OpError) Error() string {
	s := e.Op
	if e.Object != "" {
		s += " on " + e.Object
	}
	if e.Reason == "" {
		return fmt.Sprintf("%s: %v", s, e.cause())
	}
	if cause := e.cause(); cause != nil {
		return fmt.Sprintf("%s: %s (%v)", s, e.Reason, cause)
	}
	return s + ": " + e.Reason
}

func (e *OpError) cause() error {
	if e.Err != nil {
		return e.Err
	}
	return e.Kind
}

// Unwrap returns the sentinel and the cause.
func (e *OpError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Kind, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Is lets the errnos that mean the same everywhere match their sentinel. Kind it knows
// without the slice that Unwrap makes: asking for ErrQueueFull is part of the data path.
func (e *OpError) Is(target error) bool {
	switch target {
	case nil:
		return false
	case e.Kind:
		return true
	case ErrBusy:
		return errors.Is(e.Err, syscall.EBUSY)
	case ErrNotSupported:
		return errors.Is(e.Err, syscall.EOPNOTSUPP)
	}
	return false
}

// PostError is the error of a post. The first Accepted work requests of the slice
// are with the device, as if nothing had happened, and will complete; all from
// there on are the caller's again.
type PostError struct {
	OpError
	// Accepted is how many work requests of the slice were accepted.
	Accepted int
	// Index is the work request that was refused, in the slice that was posted, or
	// -1 where the provider did not say which.
	Index int
}

func (e *PostError) Error() string {
	return fmt.Sprintf("%s (%d accepted)", e.OpError.Error(), e.Accepted)
}

// Unwrap returns the OpError.
func (e *PostError) Unwrap() error { return &e.OpError }

// closeError wraps what the ownership graph says of a Close.
func closeError(op, object string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Object: object, Err: err}
}
