package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
)

func TestWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var moves atomic.Uint64
		ctx, stop := watched(t.Context(), time.Second, &moves, func() {})
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
		ctx, stop := watched(t.Context(), 0, &moves, func() {})
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
		ctx, stop := watched(outer, time.Hour, &moves, func() {})
		defer stop()
		cause := errors.New("Ctrl-C")
		cancel(cause)
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), cause)
	})
}

func TestHint(t *testing.T) {
	for _, c := range []struct {
		err      error
		peer     string // what is known of it
		received uint64
		want     string
	}{
		{&cq.Error{Status: cq.StatusLocLenErr, Recv: true}, "", 0, "; do both sides have the same --size?"},
		{&cq.Error{Status: cq.StatusLocLenErr, Recv: true}, "alike", 0, ""},
		{&cq.Error{Status: cq.StatusRemInvReqErr}, "", 0, "; do both sides have the same --size?"},
		{&cq.Error{Status: cq.StatusRemInvReqErr}, "own", 0, ""},
		{&cq.Error{Status: cq.StatusRetryExcErr}, "", 0, "; do both sides have the same --type and --mtu?"},
		{&cq.Error{Status: cq.StatusRetryExcErr}, "alike", 0, "; do both sides have the same --mtu?"},
		{&cq.Error{Status: cq.StatusRetryExcErr}, "own", 0, ""},
		{&cq.Error{Status: cq.StatusRetryExcErr}, "", 1, "; do both sides have the same --iters?"},
		{&cq.Error{Status: cq.StatusRetryExcErr}, "alike", 1, ""},
		{&cq.Error{Status: cq.StatusWRFlushErr, Recv: true}, "", 0, ""},
		{errors.New("other"), "", 0, ""},
	} {
		g := game{session: &session{alike: c.peer == "alike"}, own: c.peer == "own", received: c.received}
		err := g.withHint(c.err)
		assert.ErrorIs(t, err, c.err)
		assert.Equal(t, c.want, strings.TrimPrefix(err.Error(), c.err.Error()))
	}
}

func TestSeen(t *testing.T) {
	for _, c := range []struct {
		typ                    string
		alike                  bool
		received, done, posted uint64
		want                   string
	}{
		{typeRC, false, 0, 0, 1, "0 of 20 messages have come from the peer, and its device has acknowledged 0 of 1; do both sides have the same --type and --size?"},
		{typeSRQ, false, 10, 10, 11, "10 of 20 messages have come from the peer, and its device has acknowledged 10 of 11; do both sides have the same --iters?"},
		{typeRC, true, 10, 11, 11, "10 of 20 messages have come from the peer, and its device has acknowledged 11 of 11"},
		{typeRC, false, 20, 19, 20, "20 of 20 messages have come from the peer, and its device has acknowledged 19 of 20"},
		{typeUD, false, 10, 10, 10, "10 of 20 messages have come from the peer; do both sides have the same --iters?"},
	} {
		s := session{alike: c.alike}
		s.typ = c.typ
		g := game{session: &s, round: round{iters: 20}, received: c.received, done: c.done, posted: c.posted}
		assert.Equal(t, c.want, g.seen())
	}
}

func TestWatchedTellsOfEachIdleLook(t *testing.T) {
	for _, timeout := range []time.Duration{3 * time.Second, 0} {
		synctest.Test(t, func(t *testing.T) {
			var moves, idle atomic.Uint64
			_, stop := watched(t.Context(), timeout, &moves, func() { idle.Add(1) })
			defer stop()
			time.Sleep(2*defaultLook + 1)
			synctest.Wait()
			assert.EqualValues(t, 2, idle.Load())
			moves.Add(1)
			time.Sleep(defaultLook)
			synctest.Wait()
			assert.EqualValues(t, 2, idle.Load())
		})
	}
}

func TestProgress(t *testing.T) {
	for _, c := range []struct {
		columns int
		want    string
	}{
		{80, "\rpingpong: 64 bytes: 7 in 1s\x1b[K\r\x1b[K"},
		{28, "\rpingpong: 64 bytes: 7 in 1s\x1b[K\r\x1b[K"},
		{27, "\rpingpong: 64 bytes: 7 in 1\x1b[K\r\x1b[K"},
		{1, "\r\x1b[K\r\x1b[K"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var moves atomic.Uint64
			var out bytes.Buffer
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				showProgress(ctx, &out, func() int { return c.columns }, "64 bytes", &moves)
				close(ended)
			}()
			time.Sleep(time.Second - 1)
			synctest.Wait()
			assert.Empty(t, out.String(), "a short run")
			moves.Store(7)
			time.Sleep(time.Second)
			cancel()
			<-ended
			assert.Equal(t, c.want, out.String())
		})
	}
}
