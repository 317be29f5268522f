package cq

import "fmt"

//go:generate go run golang.org/x/tools/cmd/stringer@v0.52.0 -type=Status,Opcode,Class -linecomment -output=status_string.go

// Status is how a work request ended. Unknown values print as numbers.
//
// Implements: ibv_wc_status
type Status uint32

// The statuses.
const (
	StatusSuccess          Status = 0  // success
	StatusLocLenErr        Status = 1  // local length error
	StatusLocQPOpErr       Status = 2  // local QP operation error
	StatusLocEECOpErr      Status = 3  // local EE context operation error
	StatusLocProtErr       Status = 4  // local protection error
	StatusWRFlushErr       Status = 5  // work request flushed
	StatusMWBindErr        Status = 6  // memory window bind error
	StatusBadRespErr       Status = 7  // bad response
	StatusLocAccessErr     Status = 8  // local access error
	StatusRemInvReqErr     Status = 9  // remote invalid request
	StatusRemAccessErr     Status = 10 // remote access error
	StatusRemOpErr         Status = 11 // remote operation error
	StatusRetryExcErr      Status = 12 // transport retry counter exceeded
	StatusRNRRetryExcErr   Status = 13 // RNR retry counter exceeded
	StatusLocRDDViolErr    Status = 14 // local RDD violation
	StatusRemInvRDReqErr   Status = 15 // remote invalid RD request
	StatusRemAbortErr      Status = 16 // remote aborted
	StatusInvEECNErr       Status = 17 // invalid EE context number
	StatusInvEECStateErr   Status = 18 // invalid EE context state
	StatusFatalErr         Status = 19 // fatal error
	StatusRespTimeoutErr   Status = 20 // response timeout
	StatusGeneralErr       Status = 21 // general error
	StatusTMErr            Status = 22 // tag matching error
	StatusTMRndvIncomplete Status = 23 // tag matching rendezvous incomplete
)

// Opcode is the operation of a successful completion. Zero is none.
//
// Implements: ibv_wc_opcode
type Opcode uint32

// The operations: C's numbers and one more, so that zero is none of them.
const (
	OpSend            Opcode = 1   // SEND
	OpRDMAWrite       Opcode = 2   // RDMA_WRITE
	OpRDMARead        Opcode = 3   // RDMA_READ
	OpCompSwap        Opcode = 4   // COMP_SWAP
	OpFetchAdd        Opcode = 5   // FETCH_ADD
	OpBindMW          Opcode = 6   // BIND_MW
	OpLocalInv        Opcode = 7   // LOCAL_INV
	OpRecv            Opcode = 129 // RECV
	OpRecvRDMAWithImm Opcode = 130 // RECV_RDMA_WITH_IMM
)

// Class groups the statuses by what a program does about them.
type Class uint8

// The classes.
const (
	// ClassFlushed is a work request that was cancelled because its QP went to ERR.
	// The cause is another completion's, or the program's own Modify, Drain or Close.
	// Where it is neither, Error.Unexplained says so.
	ClassFlushed Class = iota + 1 // flushed
	// ClassLocal is a fault of this side: a wrong key, length, right or state.
	ClassLocal // local
	// ClassRemote is a fault that the peer found. Of a receive it is one in what the peer
	// sent.
	ClassRemote // remote
	// ClassRetryExceeded is a peer that did not answer.
	ClassRetryExceeded // retry exceeded
	// ClassRNR is a peer that answered, but had no receive posted.
	ClassRNR // receiver not ready
)

// Error is a failed completion: all that is known of it. Which operation it was and
// how far it got is not.
type Error struct {
	WRID      uint64
	Status    Status
	QPNum     uint32
	VendorErr uint32
	Recv      bool // the work request was a receive
	// Unexplained is a flush that the program did not cause and of which no other
	// completion has told the cause: the queue pair failed, for example because the
	// peer broke a rule, or with some devices because of this very work request.
	Unexplained bool
}

func (e *Error) Error() string {
	queue := "send"
	if e.Recv {
		queue = "receive"
	}
	s := fmt.Sprintf("%s WR %d on QP %#x: %v (status %d, vendor_err %#x)", queue, e.WRID, e.QPNum, e.Status, uint32(e.Status), e.VendorErr)
	hint := hints[e.Status]
	if e.Unexplained {
		hint = "the QP failed by itself and gives no cause; look at what the peer saw, and at the SGEs, keys and rights of the work requests on both sides"
	}
	if e.Recv && recvHints[e.Status] != "" {
		hint = recvHints[e.Status]
	}
	if hint != "" {
		s += ": " + hint
	}
	return s
}

// Class returns the group of the status.
func (e *Error) Class() Class {
	switch e.Status {
	case StatusWRFlushErr:
		return ClassFlushed
	case StatusRetryExcErr, StatusRespTimeoutErr:
		return ClassRetryExceeded
	case StatusRNRRetryExcErr:
		return ClassRNR
	case StatusRemInvReqErr, StatusRemAccessErr, StatusRemOpErr, StatusRemInvRDReqErr, StatusRemAbortErr, StatusBadRespErr:
		return ClassRemote
	}
	return ClassLocal
}

// hints say what most often is the cause.
var hints = map[Status]string{
	StatusLocLenErr:      "the message does not fit the receive buffer, or is longer than the port allows",
	StatusLocQPOpErr:     "the work request is not valid for this QP: look at its SGEs, keys and the QP's attributes",
	StatusLocProtErr:     "an SGE is not inside a memory region of the QP's PD with the right it needs",
	StatusWRFlushErr:     "the QP went to ERR before it was done; another completion, or whoever closed the QP, has the cause",
	StatusMWBindErr:      "the window is bound already, or the region and the rights do not suit the bind",
	StatusRemInvReqErr:   "the peer's QP does not allow the operation, or its receive buffer is too short",
	StatusRemAccessErr:   "the remote address and rkey do not name memory of the peer with the right that is needed, or no longer: it may just have ended",
	StatusRemOpErr:       "the peer could not carry it out: its own completion has the cause, or it has just ended",
	StatusRetryExcErr:    "the peer does not answer: it is gone, not yet connected, or not reachable from this GID (its type, its route, the MTU); from rdma_rxe of Linux 6.1 also that the peer had no receive posted",
	StatusRNRRetryExcErr: "the peer had no receive posted for as long as RNRRetry allowed",
}

// recvHints are those of receives, where it is the peer's work request that was wrong, or
// the receive did not suit it.
var recvHints = map[Status]string{
	StatusLocQPOpErr:   "the message is longer than the receive, or the receive's memory was registered without local write", // rdma_rxe tells both so
	StatusRemAccessErr: "the rkey and address that the peer used do not name memory of this side with the right that is needed",
	StatusRemInvReqErr: "the peer asked for what is not allowed here, such as to invalidate an rkey that is no memory window's of type 2",
}
