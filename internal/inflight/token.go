// Package inflight keeps what the work queues have given to the device and not got
// back: a slot for each work request, with the caller's wr_id and what the work
// request uses, and the tokens that lead from a completion to its slot.
//
// The wr_id that the device sees is a Token, never the caller's own number. It
// tells a send from a receive in a failed completion, finds the slot in constant
// time, and shows that a completion belongs to a queue that is gone, even when a
// newer queue pair has been given the same number.
//
// What a work request uses (memory regions, an address handle, a memory window) is
// counted in a Used from before the device is told until its slot is released. A
// thing that is used cannot be closed.
//
// The locks are the callers': a post lock for each work queue, and the lock of the
// completion queue that it reports to. A post takes the second only to give back
// what the device refused; Complete never takes the first.
package inflight

// Kind tells the queues of one queue pair apart.
type Kind uint8

const (
	// Foreign marks a wr_id that is no token: it was posted by other code.
	Foreign Kind = iota
	Send
	Recv
	// Shared is a receive that was posted to a shared receive queue.
	Shared
)

// The widths of a token, from the highest bit. Kind is never zero in a token, so
// that small numbers and user-space addresses are not taken for one. A position
// has one bit more than the deepest queue (2^20 on rxe), so that a full ring has
// no two slots with the same position. A generation returns after a million
// reuses of a queue id.
const (
	kindBits  = 2
	queueBits = 20
	genBits   = 21
	posBits   = 21

	posMask = 1<<posBits - 1
	genMask = 1<<genBits - 1

	// MaxDepth is the most work requests that one queue can hold.
	MaxDepth = 1 << (posBits - 1)
	// MaxQueues is the most queue pairs and shared receive queues that can exist at
	// one time.
	MaxQueues = 1 << queueBits
)

// Token is the wr_id of a posted work request.
type Token uint64

func makeToken(k Kind, queue, gen, pos uint32) Token {
	return Token(uint64(k)<<(64-kindBits) |
		uint64(queue)<<(genBits+posBits) |
		uint64(gen&genMask)<<posBits |
		uint64(pos&posMask))
}

func (t Token) kind() Kind    { return Kind(t >> (64 - kindBits)) }
func (t Token) queue() uint32 { return uint32(t>>(genBits+posBits)) & (MaxQueues - 1) }
func (t Token) gen() uint32   { return uint32(t>>posBits) & genMask }
func (t Token) pos() uint32   { return uint32(t) & posMask }
