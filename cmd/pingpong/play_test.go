package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
)

func TestPattern(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, 2, page - 1, page, page + 1, 3*page + 5} {
		msg := make([]byte, size)
		fill(msg, false)
		for i, b := range msg {
			require.EqualValues(t, 0x7b, b, "byte %d", i)
		}
		fill(msg, true)
		for i, b := range msg {
			if i%page == 0 {
				require.Zero(t, b, "byte %d", i)
			} else {
				require.EqualValues(t, 0x7b, b, "byte %d", i)
			}
		}
	}
}

func TestVerify(t *testing.T) {
	want := make([]byte, 2*os.Getpagesize()+3)
	fill(want, true)
	for _, at := range []int{0, 1, 4095, 4096, len(want) - 1} {
		got := append([]byte{}, want...)
		require.NoError(t, verify(got, want))
		got[at] ^= 1
		got[len(got)-1] ^= 1 // that it is the first one that is named
		if at == len(want)-1 {
			got[at] ^= 1
		}
		assert.ErrorContains(t, verify(got, want), fmt.Sprintf("byte %d of the message", at))
	}
	got := make([]byte, len(want))
	fill(got, false)
	assert.ErrorContains(t, verify(got, want), "byte 0 of the message is 0x7b, not 0x00", "a peer without --chk")
}

// A message that was wiped matches the pattern in no byte, so none can be missing
// from the next one.
func TestWipe(t *testing.T) {
	want := make([]byte, os.Getpagesize()+1)
	fill(want, true)
	got := make([]byte, len(want))
	wipe(got)
	for i := range got {
		require.NotEqual(t, want[i], got[i], "byte %d", i)
	}
}

func TestWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var moves atomic.Uint64
		ctx, stop := watched(t.Context(), time.Second, &moves)
		defer stop()
		for range 10 {
			time.Sleep(900 * time.Millisecond)
			moves.Add(1)
		}
		require.NoError(t, ctx.Err(), "something moves")
		moved := time.Now()
		<-ctx.Done()
		assert.ErrorContains(t, context.Cause(ctx), "no progress for 1s")
		assert.GreaterOrEqual(t, time.Since(moved), time.Second)
		assert.LessOrEqual(t, time.Since(moved), 1250*time.Millisecond)
	})
}

func TestWatchedWithoutTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var moves atomic.Uint64
		ctx, stop := watched(t.Context(), 0, &moves)
		time.Sleep(1000 * time.Hour)
		assert.NoError(t, ctx.Err())
		stop()
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
	})
}

func TestWatchedEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer, cancel := context.WithCancelCause(t.Context())
		var moves atomic.Uint64
		ctx, stop := watched(outer, time.Hour, &moves)
		defer stop()
		cause := errors.New("Ctrl-C")
		cancel(cause)
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), cause)
	})
}

func TestHint(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&cq.Error{Status: cq.StatusLocLenErr, Recv: true}, true},
		{&cq.Error{Status: cq.StatusRemInvReqErr}, true},
		{&cq.Error{Status: cq.StatusRetryExcErr}, false},
		{&cq.Error{Status: cq.StatusWRFlushErr, Recv: true}, false},
		{errors.New("other"), false},
	} {
		err := withHint(c.err)
		assert.ErrorIs(t, err, c.err)
		assert.Equal(t, c.want, strings.Contains(err.Error(), "--size"), "%v", err)
	}
}
