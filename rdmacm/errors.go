package rdmacm

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/life"
)

// errnoNotSupp is the kernel's own ENOTSUPP, which it should not, but does return.
const errnoNotSupp = syscall.Errno(524)

// ErrDisconnected says that the peer has ended the connection; errno ECONNRESET.
var ErrDisconnected = errors.New("disconnected by the peer")

// RejectError says that a peer has rejected the connection, and matches ECONNREFUSED. As what
// the setup of [Listener.Accept] returns it rejects one.
type RejectError struct {
	// Reason is RejectConsumerDefined where the peer's program has rejected, and for example
	// RejectInvalidServiceID where none listens. To reject it is not used.
	Reason RejectReason
	// PrivateData goes to the peer, where it is found with zeros after it; there is room for
	// 148 bytes.
	PrivateData []byte

	err error
}

func (e *RejectError) Error() string {
	if e.err == nil {
		return "the connection is rejected"
	}
	return e.err.Error()
}

func (e *RejectError) Unwrap() error { return e.err }

// kindOf returns the sentinel that goes with an errno of the connection manager, or nil.
func kindOf(err error) error {
	switch {
	case errors.Is(err, errnoNotSupp), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
		return ibv.ErrNotSupported
	case errors.Is(err, syscall.ENODEV):
		return ibv.ErrNoDevice
	case errors.Is(err, syscall.ECONNRESET):
		return ErrDisconnected
	case errors.Is(err, syscall.ETIMEDOUT):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// closeError wraps what the ownership graph says of a Close.
func closeError(op string, on *life.Node, err error) error {
	if err == nil {
		return nil
	}
	return &ibv.OpError{Op: op, Object: on.String(), Err: err}
}

// invalid is the error of an argument, told before C is asked.
func invalid(format string, args ...any) error {
	return &ibv.OpError{Err: syscall.EINVAL, Reason: fmt.Sprintf(format, args...)}
}

// fail says on what a call failed. reason may be empty.
func (s *idState) fail(op string, err error, reason string) error {
	if e, ok := errors.AsType[*ibv.OpError](err); ok {
		if e.Op != "" {
			return err // which says all itself
		}
		reason, err = e.Reason, e.Err
	}
	return &ibv.OpError{Op: op, Object: s.String(), Kind: kindOf(err), Err: err, Reason: reason}
}
