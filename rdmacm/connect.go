package rdmacm

import (
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/ccm"
)

// ConnParam are the parameters of a connection: what Connect asks for, and Accept grants.
// [DefaultConnParam] has the usual ones.
//
// Implements: rdma_conn_param
type ConnParam struct {
	// PrivateData goes to the peer with the message, which on InfiniBand and RoCE has room
	// for 56 bytes of Connect and 196 of Accept, and for datagrams 180 and 136.
	PrivateData []byte
	// ResponderResources is how many RDMA reads and atomics of the peer this side takes at
	// once, and InitiatorDepth how many it sends; MaxRespRes and MaxInitDepth are what the
	// device can, and with Accept no more than the peer asks for.
	ResponderResources, InitiatorDepth uint8
	FlowControl                        bool
	RetryCount                         uint8 // of both sides, 0 to 7: see ibv.QPAttr. Accept ignores it
	// RNRRetryCount is how often the peer sends again what finds no receive here: 0 to 6, or
	// ibv.RNRRetryInfinite.
	RNRRetryCount uint8
	// MinRNRTimer is how long the peer waits before it sends again what found no receive
	// here, for a queue pair of CreateQP. 0 stands for 640 µs; without it the connection
	// manager takes the longest time there is, 655 ms. The peer does not learn of it.
	MinRNRTimer time.Duration
	// SRQ and QPNum are those of the queue pair, where the id has none of CreateQP.
	SRQ   bool
	QPNum uint32
}

// What stands for all that the device can, in ConnParam.
const (
	MaxRespRes   = 0xFF // RDMA_MAX_RESP_RES
	MaxInitDepth = 0xFF // RDMA_MAX_INIT_DEPTH
)

// DefaultConnParam has as many RDMA reads and atomics as the device can, six attempts after a
// lost packet (to rdma_rxe seven are for ever), and has the peer wait for receives without end.
func DefaultConnParam() ConnParam {
	return ConnParam{
		ResponderResources: MaxRespRes,
		InitiatorDepth:     MaxInitDepth,
		FlowControl:        true,
		RetryCount:         6,
		RNRRetryCount:      ibv.RNRRetryInfinite,
	}
}

func connParam(c ccm.ConnParam) ConnParam {
	return ConnParam{
		ResponderResources: c.ResponderResources,
		InitiatorDepth:     c.InitiatorDepth,
		FlowControl:        c.FlowControl,
		RetryCount:         c.RetryCount,
		RNRRetryCount:      c.RNRRetryCount,
		SRQ:                c.SRQ,
		QPNum:              c.QPNum,
	}
}

// toC checks the parameters and turns them into C's form, with the number of the id's own
// queue pair if it has one.
func (p *ConnParam) toC(own *ownQP) (ccm.ConnParam, error) {
	c := ccm.ConnParam{
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		FlowControl:        p.FlowControl,
		RetryCount:         p.RetryCount,
		RNRRetryCount:      p.RNRRetryCount,
		SRQ:                p.SRQ,
		QPNum:              p.QPNum,
	}
	switch {
	case p.RetryCount > 7:
		return c, invalid("RetryCount is %d: it is 0 to 7", p.RetryCount)
	case p.RNRRetryCount > 7:
		return c, invalid("RNRRetryCount is %d: it is 0 to 6, or RNRRetryInfinite", p.RNRRetryCount)
	case p.MinRNRTimer < 0 || p.MinRNRTimer > 655360*time.Microsecond:
		return c, invalid("MinRNRTimer is %v: it is at most 655.36ms", p.MinRNRTimer)
	case p.QPNum > 1<<24-1:
		return c, invalid("QPNum is %#x: a QP number has 24 bits", p.QPNum)
	}
	if own != nil {
		c.SRQ, c.QPNum = own.shared, own.Num()
		most := &own.PD().Core().Ctx.Attr
		switch {
		case c.ResponderResources != MaxRespRes && int32(c.ResponderResources) > most.MaxQPRdAtom:
			return c, invalid("ResponderResources is %d, above the device's max_qp_rd_atom %d", c.ResponderResources, most.MaxQPRdAtom)
		case c.InitiatorDepth != MaxInitDepth && int32(c.InitiatorDepth) > most.MaxQPInitRdAtom:
			return c, invalid("InitiatorDepth is %d, above the device's max_qp_init_rd_atom %d", c.InitiatorDepth, most.MaxQPInitRdAtom)
		}
	}
	return c, checkData(p.PrivateData)
}

var errNoQP = invalid("there is no queue pair: CreateQP comes first, or ConnParam.QPNum names one of the program's own")

func checkData(data []byte) error {
	if len(data) > math.MaxUint8 {
		return invalid("%d bytes of private data: no message has room for more than %d", len(data), math.MaxUint8)
	}
	return nil
}

// message is one of the connection manager's: the room for private data on InfiniBand and RoCE,
// and what else is wrong where the kernel refuses to send it.
type message struct {
	connected, datagrams int
	otherwise            string
}

var (
	connectMessage = message{56, 180, "it comes once, after ROUTE_RESOLVED"}
	acceptMessage  = message{196, 136, "the request is not valid any more: the peer is gone or has given up, or it was answered before"}
	rejectMessage  = message{148, 136, acceptMessage.otherwise}
)

// explain adds what is known of a refusal, whose errno is the same for much.
func (id *ID) explain(op string, err error, m message, data []byte) error {
	if e, ok := errors.AsType[*ibv.OpError](err); !errors.Is(err, syscall.EINVAL) || ok && e.Op != "" {
		return err
	}
	most, reason := m.connected, m.otherwise
	if id.s.ps.datagrams() {
		most = m.datagrams
	}
	if len(data) > most {
		reason = fmt.Sprintf("%d bytes of private data, where the message has room for %d", len(data), most)
	}
	return id.s.fail(op, syscall.EINVAL, reason)
}

// Connect asks the peer for a connection, after ROUTE_RESOLVED. The answer is ESTABLISHED,
// REJECTED, UNREACHABLE or CONNECT_ERROR; of an id without a queue pair of CreateQP it is
// CONNECT_RESPONSE instead of ESTABLISHED, to be followed by Establish. How long the kernel
// asks a peer that does not answer is its own matter, and takes minutes: Close ends it.
//
// Implements: rdma_connect
func (id *ID) Connect(p ConnParam) error {
	const op = "rdma_connect"
	return id.callBound(op, func(h ccm.ID) error {
		own := id.own()
		c, err := p.toC(own)
		switch {
		case err != nil:
			return err
		case c.QPNum == 0 && !id.s.ps.datagrams():
			return errNoQP
		case own != nil:
			own.minRNRTimer = p.MinRNRTimer
		}
		return id.explain(op, ccm.Connect(h, c, p.PrivateData), connectMessage, p.PrivateData)
	})
}

// Accept accepts the connection of a CONNECT_REQUEST: of an id with a queue pair of CreateQP
// it takes that to RTS first, so that its receives should be posted by then. The answer is
// ESTABLISHED. Where the peer has closed or given up meanwhile Accept fails with EINVAL: until
// it is called, the kernel tells nothing of a request. A peer that is gone without a word makes
// it UNREACHABLE, after a minute or so; Close ends the waiting.
//
// Implements: rdma_accept
func (id *ID) Accept(p ConnParam) error {
	const op = "rdma_accept"
	return id.callBound(op, func(h ccm.ID) error {
		own := id.own()
		connects := own != nil && !id.s.ps.datagrams()
		if connects {
			most := &own.PD().Core().Ctx.Attr
			p.ResponderResources = grant(p.ResponderResources, id.s.asked.ResponderResources, most.MaxQPRdAtom)
			own.minRNRTimer = p.MinRNRTimer
			p.InitiatorDepth = grant(p.InitiatorDepth, id.s.asked.InitiatorDepth, most.MaxQPInitRdAtom)
		}
		c, err := p.toC(own)
		switch {
		case err != nil:
			return err
		case !id.s.passive:
			return invalid("the id was not made by a CONNECT_REQUEST")
		case c.QPNum == 0:
			return errNoQP
		case connects:
			err = own.toRTS(h, &p)
		}
		if err == nil {
			err = ccm.Accept(h, c, p.PrivateData)
		}
		if err != nil && own != nil {
			_ = own.end() // its receives have their completions
		}
		return id.explain(op, err, acceptMessage, p.PrivateData)
	})
}

// grant is how many reads and atomics there can be, of those that both sides want.
func grant(want, asked uint8, device int32) uint8 {
	if want != MaxRespRes {
		return want
	}
	return uint8(min(int32(asked), device))
}

// Reject rejects a CONNECT_REQUEST. The private data goes to the peer, whose REJECTED has
// RejectConsumerDefined; there is room for 148 bytes, and for datagrams 136. The id is to be
// closed.
//
// Implements: rdma_reject
func (id *ID) Reject(privateData []byte) error {
	return id.reject("rdma_reject", false, privateData)
}

// RejectECE is Reject for a peer whose enhancements this side does not have; its REJECTED has
// RejectVendorOption.
//
// Implements: rdma_reject_ece
func (id *ID) RejectECE(privateData []byte) error {
	return id.reject("rdma_reject_ece", true, privateData)
}

func (id *ID) reject(op string, ece bool, data []byte) error {
	return id.call(op, func(h ccm.ID) error {
		if err := checkData(data); err != nil {
			return err
		}
		return id.explain(op, ccm.Reject(h, ece, data), rejectMessage, data)
	})
}

// Establish ends the connecting of an id without a queue pair of CreateQP, after
// CONNECT_RESPONSE: the program has taken its own queue pair to RTS, with InitQPAttr. The
// peer finds ESTABLISHED; here no event follows.
//
// Implements: rdma_establish
func (id *ID) Establish() error {
	return id.call("rdma_establish", ccm.Establish)
}

// Notify tells the connection manager of an asynchronous event of a queue pair of the
// program's own: of ibv.EventCommEst, which says that the peer sends though its last message
// was lost. Where the connection is established already it fails with EISCONN.
//
// Implements: rdma_notify
func (id *ID) Notify(event ibv.EventType) error {
	return id.call("rdma_notify", func(h ccm.ID) error { return ccm.Notify(h, int32(event)) })
}

// Disconnect ends the connection. It moves the queue pair of CreateQP to ERR, so that what is
// posted there is flushed; one of the program's own it leaves to it. The peer finds
// DISCONNECTED and calls Disconnect, or Close, too: until then its queue pair is as it was.
// When it has, or does not answer for long, this side finds DISCONNECTED. An id that is not
// connected fails with EINVAL; but after Accept and before ESTABLISHED Disconnect succeeds, and
// the peer is told nothing: Close tells it.
//
// Implements: rdma_disconnect
func (id *ID) Disconnect() error {
	return id.call("rdma_disconnect", id.disconnect)
}

func (id *ID) disconnect(h ccm.ID) error {
	if own := id.own(); own != nil {
		if err := own.end(); err != nil {
			return err
		}
	}
	return ccm.Disconnect(h)
}
