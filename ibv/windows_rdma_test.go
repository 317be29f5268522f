//go:build rdma

package ibv_test

import (
	"encoding/binary"
	"log/slog"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/rdmatest"
	"github.com/goverbs/goverbs/mr"
)

// deviceWindowed is a pair of which B has a window, which is bound to bytes of region and
// given to A.
type deviceWindowed struct {
	*rdmatest.Pair
	*testing.T
	region *mr.Region // 4096 bytes
	mw     *ibv.MW
}

func deviceNewWindowed(t *testing.T, typ ibv.MWType) *deviceWindowed {
	p := newPairOf(t, ibv.QPTypeRC)
	w := &deviceWindowed{Pair: p, T: t, region: rdmatest.Region(t, p.PD, 4096, ibv.AccessMWBind)}
	w.mw = windowOf(t, p.PD, typ)
	return w
}

// postBind binds the window to 1024 bytes from off, and does not wait.
func (w *deviceWindowed) postBind(wrID uint64, off int, access ibv.AccessFlags) {
	w.Helper()
	w.postMWBind(wrID, w.region.MWBind(w.mw, off, 1024, access))
}

func (w *deviceWindowed) postMWBind(wrID uint64, b ibv.MWBind) {
	w.Helper()
	if w.mw.Type() == ibv.MWType1 {
		require.NoError(w, w.B.QP.BindMW(wrID, 0, b))
		return
	}
	post(w.T, &w.B, ibv.BindMW(wrID, 0, b))
}

// bind returns what A can use.
func (w *deviceWindowed) bind(off int, access ibv.AccessFlags) ibv.RemoteRange {
	w.Helper()
	w.postBind(1, off, access)
	done(w.T, &w.B, 1, cq.OpBindMW)
	return w.mw.Remote()
}

// worksAt has A write to a window that begins at off of the region.
func (w *deviceWindowed) worksAt(r ibv.RemoteRange, off int) {
	w.Helper()
	fill(w.A.Region.Bytes()[:1024], off+int(r.RKey))
	clear(w.region.Bytes())
	post(w.T, &w.A, ibv.Write(1, 0, r, w.A.Region.SGE(0, 1024)))
	done(w.T, &w.A, 1, cq.OpRDMAWrite)
	assert.Equal(w, w.A.Region.Bytes()[:1024], w.region.Bytes()[off:off+1024])
	for _, rest := range [][]byte{w.region.Bytes()[:off], w.region.Bytes()[off+1024:]} {
		assert.Equal(w, make([]byte, len(rest)), rest, "the rest of the region")
	}
}

// refused has A post what the window does not allow, after which the pair is dead.
func (w *deviceWindowed) refused(wr ibv.SendWR) {
	w.Helper()
	fill(w.region.Bytes(), 5)
	want := append([]byte(nil), w.region.Bytes()...)
	post(w.T, &w.A, wr)
	wc := w.A.Wait(w, 1)[0]
	require.Equal(w, cq.StatusRemAccessErr, wc.Status)
	assert.Equal(w, want, w.region.Bytes(), "nothing was written")
}

func (w *deviceWindowed) writeTo(r ibv.RemoteRange) ibv.SendWR {
	return ibv.Write(1, 0, r, w.A.Region.SGE(0, 8))
}

// forTypes runs a test with a window of either type.
func forTypes(t *testing.T, f func(w *deviceWindowed)) {
	for _, typ := range []ibv.MWType{ibv.MWType1, ibv.MWType2} {
		t.Run(typ.String(), func(t *testing.T) { f(deviceNewWindowed(t, typ)) })
	}
}

func TestWindow(t *testing.T) {
	forTypes(t, func(w *deviceWindowed) {
		before := w.mw.Remote()
		assert.Zero(w, before.Addr)
		assert.Zero(w, before.Length)
		assert.False(w, w.mw.Bound())

		w.postBind(1, 512, rdmatest.RemoteAccess)
		r := w.mw.Remote()
		assert.Equal(w, w.region.Remote().Addr+512, r.Addr)
		assert.EqualValues(w, 1024, r.Length)
		assert.NotEqual(w, w.region.RKey(), r.RKey)
		assert.NotEqual(w, before.RKey, r.RKey)
		assert.False(w, w.mw.Bound(), "its completion was not polled")
		err := w.region.Close()
		require.ErrorIs(w, err, ibv.ErrBusy)
		assert.ErrorContains(w, err, "1 work requests in flight")
		require.ErrorIs(w, w.mw.Close(), ibv.ErrBusy)
		done(w.T, &w.B, 1, cq.OpBindMW)
		assert.True(w, w.mw.Bound())
		assert.Equal(w, r, w.mw.Remote())
		err = w.region.Close()
		require.ErrorIs(w, err, ibv.ErrBusy)
		assert.ErrorContains(w, err, w.mw.String())
		assert.Zero(w, w.region.InFlight())

		w.worksAt(r, 512)
		fill(w.region.Bytes(), 8)
		post(w.T, &w.A, ibv.Read(2, 0, r, w.A.Region.SGE(0, 1024)))
		done(w.T, &w.A, 2, cq.OpRDMARead)
		assert.Equal(w, w.region.Bytes()[512:1536], w.A.Region.Bytes()[:1024])
		word := w.region.Bytes()[520:528]
		binary.NativeEndian.PutUint64(word, 40)
		post(w.T, &w.A, ibv.FetchAdd(3, 0, r.Slice(8, 8), 2, w.A.Region.SGE(0, 8)))
		done(w.T, &w.A, 3, cq.OpFetchAdd)
		assert.EqualValues(w, 42, binary.NativeEndian.Uint64(word))

		require.NoError(w, w.mw.Close())
		assert.False(w, w.mw.Bound())
		require.NoError(w, w.region.Close())
	})
}

func TestZeroBasedWindow(t *testing.T) {
	w := deviceNewWindowed(t, ibv.MWType2)
	r := w.bind(512, rdmatest.RemoteAccess|ibv.AccessZeroBased)
	assert.Zero(t, r.Addr)
	w.worksAt(r, 512)
}

// What the device has bound stays so when the queue pair is reset before anybody has polled.
func TestResetAfterABind(t *testing.T) {
	forTypes(t, func(w *deviceWindowed) {
		postRecv(w.T, &w.A, recvsFrom(&w.A, 1, 1)...)
		w.postBind(1, 512, rdmatest.RemoteAccess)
		post(w.T, &w.B, sendsFrom(&w.B, 2, 1, 0)...) // it goes when the bind is done
		w.A.Wait(w, 1)
		r := w.mw.Remote()
		toState(w.T, w.B.QP, ibv.QPStateReset)
		assert.Equal(w, r, w.mw.Remote())
		assert.True(w, w.mw.Bound())
		err := w.region.Close()
		require.ErrorIs(w, err, ibv.ErrBusy)
		assert.ErrorContains(w, err, w.mw.String())
		require.NoError(w, w.mw.Close())
		require.NoError(w, w.region.Close())
	})
}

// Beyond the window's rights A is refused, though the region and the QP would allow it.
func TestWindowLimits(t *testing.T) {
	shifted := func(r ibv.RemoteRange, by int) ibv.RemoteRange { r.Addr += uint64(by); return r }
	for name, c := range map[string]struct {
		access ibv.AccessFlags
		wr     func(w *deviceWindowed, r ibv.RemoteRange) ibv.SendWR
	}{
		"before the region": {rdmatest.RemoteAccess, func(w *deviceWindowed, r ibv.RemoteRange) ibv.SendWR { return w.writeTo(shifted(r, -513)) }},
		"behind the region": {rdmatest.RemoteAccess, func(w *deviceWindowed, r ibv.RemoteRange) ibv.SendWR { return w.writeTo(shifted(r, 4096-512-7)) }},
		"no write":          {rdmatest.RemoteAccess &^ ibv.AccessRemoteWrite, func(w *deviceWindowed, r ibv.RemoteRange) ibv.SendWR { return w.writeTo(r) }},
		"no read": {rdmatest.RemoteAccess &^ ibv.AccessRemoteRead, func(w *deviceWindowed, r ibv.RemoteRange) ibv.SendWR {
			return ibv.Read(1, 0, r, w.A.Region.SGE(0, 8))
		}},
		"no atomic": {rdmatest.RemoteAccess &^ ibv.AccessRemoteAtomic, func(w *deviceWindowed, r ibv.RemoteRange) ibv.SendWR {
			return ibv.FetchAdd(1, 0, r, 1, w.A.Region.SGE(0, 8))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			forTypes(t, func(w *deviceWindowed) { w.refused(c.wr(w, w.bind(512, c.access))) })
		})
	}
}

// To the documentation of MW: rdma_rxe holds a peer to the rights of a window and to the
// range of its region, but not to the window's own.
func TestWindowRange(t *testing.T) {
	kernel(t) // one whose rdma_rxe is known
	forTypes(t, func(w *deviceWindowed) {
		r := w.bind(512, rdmatest.RemoteAccess)
		for _, by := range []int{-512, 1024} {
			outside := r
			outside.Addr += uint64(by)
			w.worksAt(outside, 512+by)
		}
	})
}

// TestWindowRevoked takes a window back in every way. Each time A could use it before.
func TestWindowRevoked(t *testing.T) {
	revokes := func(name string, typ ibv.MWType, revoke func(w *deviceWindowed, r ibv.RemoteRange)) {
		t.Run(name+", "+typ.String(), func(t *testing.T) {
			w := deviceNewWindowed(t, typ)
			r := w.bind(512, rdmatest.RemoteAccess)
			w.worksAt(r, 512)
			revoke(w, r)
			w.refused(w.writeTo(r))
			if w.mw.Bound() {
				require.NoError(t, w.mw.Close())
			}
			require.NoError(t, w.region.Close(), "nothing holds the region any more")
		})
	}
	unbound := func(w *deviceWindowed) {
		w.Helper()
		assert.False(w, w.mw.Bound())
		assert.Zero(w, w.region.InFlight())
	}
	for _, typ := range []ibv.MWType{ibv.MWType1, ibv.MWType2} {
		revokes("close", typ, func(w *deviceWindowed, _ ibv.RemoteRange) {
			require.NoError(w, w.mw.Close())
			unbound(w)
		})
	}
	revokes("bind elsewhere", ibv.MWType1, func(w *deviceWindowed, old ibv.RemoteRange) {
		r := w.bind(2048, rdmatest.RemoteAccess)
		assert.True(w, w.mw.Bound())
		assert.NotEqual(w, old.RKey, r.RKey)
		w.worksAt(r, 2048)
	})
	revokes("bind of nothing", ibv.MWType1, func(w *deviceWindowed, old ibv.RemoteRange) {
		require.NoError(w, w.B.QP.BindMW(2, 0, ibv.MWBind{MW: w.mw}))
		assert.True(w, w.mw.Bound(), "its completion was not polled")
		assert.Zero(w, w.mw.Remote().Length)
		done(w.T, &w.B, 2, cq.OpBindMW)
		unbound(w)
		err := w.B.QP.BindMW(3, 0, ibv.MWBind{MW: w.mw})
		isRefused(w.T, "ibv_bind_mw", err, 0, syscall.EINVAL, w.mw.String()+" is bound to nothing already")
	})
	revokes("LOCAL_INV", ibv.MWType2, func(w *deviceWindowed, old ibv.RemoteRange) {
		post(w.T, &w.B, ibv.LocalInv(2, 0, old.RKey))
		assert.True(w, w.mw.Bound(), "its completion was not polled")
		err := w.mw.Close()
		require.ErrorIs(w, err, ibv.ErrBusy)
		done(w.T, &w.B, 2, cq.OpLocalInv)
		unbound(w)
	})
	sendInv := func(w *deviceWindowed, old ibv.RemoteRange) {
		w.Helper()
		postRecv(w.T, &w.B, ibv.Recv(3, w.B.Region.SGE(0, 8)))
		fill(w.A.Region.Bytes()[:8], 7)
		post(w.T, &w.A, ibv.SendInv(2, 0, old.RKey, w.A.Region.SGE(0, 8)))
		done(w.T, &w.A, 2, cq.OpSend)
		wc := done(w.T, &w.B, 3, cq.OpRecv)
		rkey, window, ok := wc.Invalidated()
		assert.True(w, ok)
		assert.Equal(w, old.RKey, rkey)
		assert.Same(w, w.mw, window)
		_, hasImm := wc.Imm()
		assert.False(w, hasImm)
		assert.Equal(w, w.A.Region.Bytes()[:8], w.B.Region.Bytes()[:8])
		unbound(w)
	}
	revokes("SEND_WITH_INV", ibv.MWType2, sendInv)
	revokes("LOCAL_INV right behind the bind", ibv.MWType2, func(w *deviceWindowed, old ibv.RemoteRange) {
		sendInv(w, old)
		w.postBind(4, 512, rdmatest.RemoteAccess)
		post(w.T, &w.B, ibv.LocalInv(5, 0, w.mw.Remote().RKey))
		done(w.T, &w.B, 4, cq.OpBindMW)
		done(w.T, &w.B, 5, cq.OpLocalInv)
		unbound(w)
	})
	revokes("invalidations and new binds", ibv.MWType2, func(w *deviceWindowed, old ibv.RemoteRange) {
		r := old
		for round := range 300 { // the 8 bits that an rkey changes in go round
			if round%2 == 0 {
				sendInv(w, r)
			} else {
				post(w.T, &w.B, ibv.LocalInv(2, 0, r.RKey))
				done(w.T, &w.B, 2, cq.OpLocalInv)
			}
			was := r.RKey
			r = w.bind(1024, rdmatest.RemoteAccess)
			require.NotEqual(w, was, r.RKey)
		}
		w.worksAt(r, 1024)
		sendInv(w, r)
	})
}

// A bind that fails, here because its QP is in ERR, leaves the window as it was.
func TestFailedBind(t *testing.T) {
	forTypes(t, func(w *deviceWindowed) {
		fails := func() {
			w.Helper()
			bound, before := w.mw.Bound(), w.mw.Remote()
			require.NoError(w, w.B.QP.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState))
			w.postBind(5, 2048, ibv.AccessRemoteRead)
			w.postBind(6, 1024, ibv.AccessRemoteRead)
			assert.NotEqual(w, before, w.mw.Remote())
			for i, wc := range w.B.Wait(w, 2) {
				require.Equal(w, cq.StatusWRFlushErr, wc.Status)
				assert.EqualValues(w, 5+i, wc.WRID)
			}
			assert.Equal(w, before, w.mw.Remote())
			assert.Equal(w, bound, w.mw.Bound())
			assert.Zero(w, w.region.InFlight())
			reconnectWith(w.T, w.Pair, rdmatest.RemoteAccess)
		}
		fails()
		r := w.bind(512, rdmatest.RemoteAccess)
		w.worksAt(r, 512)
		fails()
		w.worksAt(r, 512)
	})
}

// The peer's invalidation may be seen before the bind that it undoes, which is not
// signaled here.
func TestInvalidatedBeforeTheBindIsPolled(t *testing.T) {
	init := rdmatest.DefaultInit()
	init.SignalAll = false
	p := rdmatest.NewPair(t, init)
	region, mw := rdmatest.Region(t, p.PD, 4096, ibv.AccessMWBind), windowOf(t, p.PD, ibv.MWType2)
	postRecv(t, &p.A, ibv.Recv(1))
	postRecv(t, &p.B, ibv.Recv(2))
	post(t, &p.B, ibv.BindMW(3, 0, region.MWBind(mw, 0, 8, ibv.AccessRemoteRead)), ibv.Send(4, 0))
	done(t, &p.A, 1, cq.OpRecv) // the bind, which is before that message, is done
	post(t, &p.A, ibv.SendInv(5, ibv.SendSignaled, mw.Remote().RKey))
	done(t, &p.A, 5, cq.OpSend)
	wc := done(t, &p.B, 2, cq.OpRecv)
	_, window, _ := wc.Invalidated()
	assert.Same(t, mw, window)
	require.ErrorIs(t, region.Close(), ibv.ErrBusy, "the bind is in flight as far as is known")

	postRecv(t, &p.A, ibv.Recv(6))
	post(t, &p.B, ibv.Send(7, ibv.SendSignaled))
	done(t, &p.B, 7, cq.OpSend)
	assert.False(t, mw.Bound())
	require.NoError(t, region.Close())
}

// A window of type 2 is bound again only after an invalidation. The device refuses it.
func TestWindowOfType2IsNotBoundTwice(t *testing.T) {
	w := deviceNewWindowed(t, ibv.MWType2)
	r := w.bind(512, rdmatest.RemoteAccess)
	w.postBind(2, 2048, rdmatest.RemoteAccess)
	wc := w.B.Wait(w, 1)[0]
	want := cq.Error{WRID: 2, Status: cq.StatusMWBindErr}
	if kernel(t) == linux612 {
		want.Status, want.Unexplained = cq.StatusWRFlushErr, true
	}
	requireFailed(t, &w.B, &wc, want)
	assert.Equal(t, r, w.mw.Remote())
	assert.True(t, w.mw.Bound())
	reconnectWith(t, w.Pair, rdmatest.RemoteAccess)
	w.worksAt(r, 512)
}

// lines gets what a logger writes.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// A window that the program dropped while it is bound stays: a peer has its rkey.
func TestDroppedWindowThatIsBound(t *testing.T) {
	reports := make(lines, 10)
	ibv.SetLogger(slog.New(slog.NewTextHandler(reports, nil)))
	defer ibv.SetLogger(slog.Default())
	p := newPairOf(t, ibv.QPTypeRC)
	t.Cleanup(func() { require.NoError(t, p.Ctx.CloseAll()) }) // nothing else can close the window
	w := &deviceWindowed{Pair: p, T: t, region: rdmatest.Region(t, p.PD, 4096, ibv.AccessMWBind)}
	r, name := func() (ibv.RemoteRange, string) {
		var err error
		w.mw, err = p.PD.AllocMW(ibv.MWType2)
		require.NoError(t, err)
		r := w.bind(512, rdmatest.RemoteAccess)
		name := w.mw.String()
		w.mw = nil
		return r, name
	}()
	var report string
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case report = <-reports:
			return true
		default:
			return false
		}
	}, 10*time.Second, time.Millisecond)
	assert.Contains(t, report, "dropped without Close: kept open")
	assert.Contains(t, report, `object="`+name+`"`)
	assert.Contains(t, report, "a peer may be using it: it is bound")
	w.worksAt(r, 512)
	assert.ErrorContains(t, w.region.Close(), name)

	postRecv(t, &p.B, ibv.Recv(3))
	post(t, &p.A, ibv.SendInv(2, 0, r.RKey))
	done(t, &p.A, 2, cq.OpSend)
	wc := done(t, &p.B, 3, cq.OpRecv)
	rkey, window, ok := wc.Invalidated()
	assert.True(t, ok)
	assert.Equal(t, r.RKey, rkey)
	assert.Nil(t, window)
	require.NoError(t, w.region.Close())
}
