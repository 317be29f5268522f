//go:build linux

package fdwait

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// contexts are those of which none ever ends.
func contexts(b *testing.B, run func(b *testing.B, ctx context.Context)) {
	b.Run("background", func(b *testing.B) { run(b, context.Background()) })
	b.Run("cancellable", func(b *testing.B) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		run(b, ctx)
	})
}

// A wait that finds an event: a read of eight bytes and what Wait adds.
func BenchmarkFinds(b *testing.B) {
	contexts(b, func(b *testing.B, ctx context.Context) {
		c := newCounter(b)
		require.NoError(b, c.add(1<<40))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Wait(ctx, 0, 0, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Two goroutines in turn wake each other from the poller: two waits and two writes.
func BenchmarkParks(b *testing.B) {
	contexts(b, func(b *testing.B, ctx context.Context) {
		ping, pong := newCounter(b), newCounter(b)
		over := make(chan struct{})
		go func() {
			defer close(over)
			for {
				if _, err := ping.Wait(ctx, 0, 0, nil); err != nil {
					return // it was closed
				}
				_ = pong.add(1)
			}
		}()
		b.ReportAllocs()
		for b.Loop() {
			_ = ping.add(1)
			if _, err := pong.Wait(ctx, 0, 0, nil); err != nil {
				b.Fatal(err)
			}
		}
		ping.Close()
		<-over
	})
}
