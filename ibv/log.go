package ibv

import (
	"log/slog"

	"github.com/goverbs/goverbs/internal/life"
)

// SetLogger sets where the library reports what no call can return: that an object was
// dropped without Close, which is a leak to mend, and what became of it; that a completion
// queue can overflow; and that a completion queue or a device has failed. The default is slog.Default, as it is at the time of the report; nil silences the
// reports. It may be called at any time, from any goroutine, and holds for all devices.
//
// A failure is reported once for each queue and device, at level Error, as soon as the
// device has raised the event. That a completion queue can overflow is reported at level
// Warn by each call that makes it so. Each dropped object is reported once, at level Warn,
// when it is decided what becomes of it: it was closed by the library, after everything
// that used it, or it is kept open, and why. An object that cannot be closed at first is
// tried some more times, which is one more report. The attributes are strings:
//
//   - object: which it was, as its String method says: "QP 0x11 of rxe0"
//   - reason: why it is still open, how it failed, or how it can overflow
//   - with: the queue pair that was created, where a completion queue can overflow
//   - made: the stack that made it, a call a line, if SetTrace was on by then
//
// The logger's handler is called from goroutines of the library, without any lock. Dropped
// objects are reported one at a time: a handler holds up the closing of others until it
// returns.
func SetLogger(l *slog.Logger) { life.SetLogger(l) }

// SetTrace sets whether objects that are made from now on keep the stack that made them,
// for SetLogger's reports: which line of the program leaks. It is off at first, since it
// costs each object 256 bytes and a walk up the stack. A program may leave it to whoever
// looks for a leak at night:
//
//	ibv.SetTrace(os.Getenv("MYPROGRAM_TRACE") != "")
//
// It may be called at any time, from any goroutine, and holds for all devices.
func SetTrace(on bool) { life.Trace(on) }
