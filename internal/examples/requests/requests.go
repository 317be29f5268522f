// Package requests reads records of a peer's memory on behalf of many goroutines, each of
// which may give up when it likes.
package requests

import (
	"bytes"
	"context"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/mr"
)

// Client reads records. Its methods may be called from several goroutines.
type Client struct {
	qp      *ibv.QP
	done    *cq.Dispatcher
	peer    ibv.RemoteRange
	size    int
	buffers *mr.Region
	free    chan int // offsets of buffers that are nobody's
}

// NewClient returns a client of the peer's records, of size bytes each. q is the completion
// queue of qp; all of buffers is the client's.
func NewClient(qp *ibv.QP, q *cq.CQ, peer ibv.RemoteRange, size int, buffers *mr.Region) *Client {
	c := &Client{qp, cq.NewDispatcher(q, nil), peer, size, buffers, make(chan int, buffers.Len()/size)}
	for off := 0; off+size <= buffers.Len(); off += size {
		c.free <- off
	}
	return c
}

// Run takes completions until ctx ends or the completion queue is closed.
func (c *Client) Run(ctx context.Context) error { return c.done.Run(ctx) }

// Read returns record i. Where ctx ends first the buffer stays the device's, and comes back
// when the device is done with it.
func (c *Client) Read(ctx context.Context, i int) ([]byte, error) {
	var off int
	select {
	case off = <-c.free:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	op, err := c.done.Start(func(id uint64) error {
		read := ibv.Read(id, ibv.SendSignaled, c.peer.Slice(i*c.size, c.size), c.buffers.SGE(off, c.size))
		_, err := c.qp.PostSend([]ibv.SendWR{read})
		return err
	})
	if err != nil {
		c.free <- off
		return nil, err
	}
	defer op.AfterDone(func() { c.free <- off })
	if _, err := op.Wait(ctx); err != nil {
		return nil, err
	}
	return bytes.Clone(c.buffers.Bytes()[off:][:c.size]), nil
}
