//go:build rdma

package requests

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
)

const (
	records = 1000
	size    = 64
	buffers = 16 // as many as the queue pair has work requests
)

// TestReadsOfManyGoroutines has a peer that answers, until it does so no more.
func TestReadsOfManyGoroutines(t *testing.T) {
	// The device gives up after some seconds: later than any read here.
	p := rdmatest.NewPair(t, rdmatest.DefaultInit(), func(c *ibv.ConnectParams) { c.Timeout, c.RetryCount = time.Second, 1 })
	peer := rdmatest.Region(t, p.PD, records*size, ibv.AccessRemoteRead)
	record := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size/2) }
	for i := range records {
		copy(peer.Bytes()[i*size:], record(i))
	}
	c := NewClient(p.A.QP, p.A.CQ, peer.Remote(), size, rdmatest.Region(t, p.PD, buffers*size))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()

	var wg sync.WaitGroup
	for g := range 40 { // more than there are buffers
		wg.Go(func() {
			for i := g; i < records; i += 40 {
				got, err := c.Read(t.Context(), i)
				assert.NoError(t, err)
				assert.Equal(t, record(i), got)
			}
		})
	}
	wg.Wait()

	require.NoError(t, p.B.QP.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState))
	for g := range 8 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := c.Read(ctx, g)
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
	wg.Wait()
	assert.Equal(t, 8, c.buffers.InFlight(), "those that have timed out are the device's")
	require.ErrorIs(t, c.buffers.Close(), ibv.ErrBusy)
	assert.Len(t, c.free, buffers-8)

	// In the end the device says what has become of them, and all buffers are free.
	require.Eventually(t, func() bool { return len(c.free) == buffers }, time.Minute, 10*time.Millisecond)
	assert.Zero(t, c.buffers.InFlight())
	_, err := c.Read(t.Context(), 1)
	var failed *cq.Error
	require.True(t, errors.As(err, &failed), "the queue pair is in ERR: %v", err)
	assert.Equal(t, cq.ClassFlushed, failed.Class())

	require.NoError(t, p.A.QP.Close())
	require.NoError(t, p.A.CQ.Close())
	require.ErrorIs(t, <-ended, ibv.ErrClosed)
}
