package inflight

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// issued is a work request as the model remembers it.
type issued struct {
	token, wrID uint64
	signaled    bool
	uses        []int // of the model's things
	effect      *effect
}

type effect struct{ done, failed, refused int }

func (e *effect) Refused() { e.refused++ }
func (e *effect) Done(ok bool) {
	if ok {
		e.done++
	} else {
		e.failed++
	}
}

// model runs programs on a Table and on lists, and compares them.
type model struct {
	t       *testing.T
	table   Table
	settler Settler
	q       *Queue
	owned   map[Kind][]issued // oldest first
	dead    []uint64          // tokens of queues that are gone
	things  [7]*Used
	shut    [7]bool
	wrID    uint64
	depth   int
}

func (m *model) newQueue() {
	var err error
	m.q, err = m.table.New(m.depth, m.depth)
	require.NoError(m.t, err)
}

// post posts a batch of which the device takes the first took.
func (m *model) post(k Kind, next func() int) {
	p := m.q.poster(k)
	want := 1 + next()%5
	if k != Shared {
		want = min(want, m.depth-len(m.owned[k]))
	}
	require.Equal(m.t, want, p.Begin(want), "room")
	var batch []issued
	if r, ok := p.(*Ring); ok && next()%2 == 0 {
		batch = m.run(r, next()%(want+1), next)
		want -= len(batch)
	}
	for range want {
		m.wrID++
		w := issued{wrID: m.wrID, signaled: k != Send || next()%2 == 0}
		w.token = uint64(p.Start(w.wrID, w.signaled))
		usable := true
		for n := next() % 8; n > 0; n-- {
			i := next() % len(m.things)
			w.uses = appendNew(w.uses, i)
			usable = p.Use(m.things[i]) && usable
		}
		if next()%4 == 0 {
			w.effect = new(effect)
			p.Effect(w.effect)
		}
		for _, i := range w.uses {
			require.False(m.t, usable && m.shut[i], "a thing that is shut was taken")
		}
		if usable {
			p.Keep()
			batch = append(batch, w)
		}
	}
	// Somebody may close a thing between the fill and the call.
	var dropped []issued
	if i := next(); i%8 == 0 {
		i = i / 8 % len(m.things)
		m.shutThing(i)
		for at, w := range batch {
			if m.shut[i] && slices.Contains(w.uses, i) {
				batch, dropped = batch[:at], batch[at:]
				break
			}
		}
	}
	require.Equal(m.t, len(batch), p.Commit())
	for _, w := range dropped {
		if w.effect != nil {
			require.Equal(m.t, effect{refused: 1}, *w.effect)
		}
	}
	took := len(batch)
	if next()%3 == 0 {
		took = next() % (len(batch) + 1)
		p.Refused(took)
	}
	for _, w := range batch[took:] {
		if w.effect != nil {
			require.Equal(m.t, effect{refused: 1}, *w.effect)
		}
	}
	m.owned[k] = append(m.owned[k], batch[:took]...)
}

// run adds a row of n work requests that use one thing.
func (m *model) run(r *Ring, n int, next func() int) (batch []issued) {
	i := next() % len(m.things)
	if m.shut[i] {
		return nil
	}
	for len(batch) < n {
		row, pos, signaled := r.Row()
		k := 0
		for ; k < row.Len() && len(batch) < n; k++ {
			m.wrID++
			w := issued{wrID: m.wrID, signaled: r == &m.q.Recv || next()%2 == 0, uses: []int{i}}
			if w.signaled {
				signaled = pos + uint32(k) + 1
			}
			w.token = uint64(row.Put(k, w.wrID, signaled, m.things[i]))
			batch = append(batch, w)
		}
		r.EndRow(k, m.things[i])
	}
	return batch
}

func (m *model) shutThing(i int) {
	inFlight := m.count(i)
	require.Equal(m.t, inFlight, m.things[i].Shut(), "uses in flight when closing")
	m.shut[i] = inFlight == 0
}

// count is how many work requests in flight use thing i.
func (m *model) count(i int) (n int) {
	for _, list := range m.owned {
		for _, w := range list {
			if slices.Contains(w.uses, i) {
				n++
			}
		}
	}
	return n
}

// complete completes one work request: in order, or with unsignaled ones and lost
// completions before it.
func (m *model) complete(k Kind, next func() int) {
	list := m.owned[k]
	if len(list) == 0 {
		return
	}
	at, ok := next()%len(list), next()%2 == 0
	w := list[at]
	user, kind, o := settleBy(&m.settler, w.token, ok)
	require.Equal(m.t, Ours, o)
	require.Equal(m.t, k, kind)
	require.Equal(m.t, w.wrID, user)
	var covered []issued
	if k == Shared {
		covered = list[at : at+1 : at+1]
		m.owned[k] = append(append([]issued(nil), list[:at]...), list[at+1:]...)
	} else {
		covered, m.owned[k] = list[:at+1], list[at+1:]
	}
	for i, c := range covered {
		_, _, o := settleBy(&m.settler, c.token, true)
		require.Equal(m.t, Unknown, o, "a released slot completes no more")
		if c.effect != nil {
			want := effect{done: 1}
			if i == len(covered)-1 && !ok {
				want = effect{failed: 1}
			}
			require.Equal(m.t, want, *c.effect)
		}
	}
}

func (m *model) bury() {
	for k, list := range m.owned {
		for _, w := range list {
			m.dead = append(m.dead, w.token)
			if w.effect != nil {
				require.Equal(m.t, effect{failed: 1}, *w.effect)
			}
		}
		m.owned[k] = nil
	}
}

func (m *model) check() {
	for k, list := range m.owned {
		require.Equal(m.t, len(list), m.q.poster(k).InFlight())
	}
	signaled := false
	for _, w := range m.owned[Send] {
		signaled = signaled || w.signaled
	}
	require.Equal(m.t, signaled, m.q.Send.Signaled())
	for i, u := range m.things {
		require.Equal(m.t, m.count(i), u.InFlight(), "uses of thing %d", i)
	}
	for _, tok := range m.dead[max(0, len(m.dead)-20):] {
		_, _, o := settleBy(&m.settler, tok, true)
		require.Equal(m.t, Late, o)
	}
}

// FuzzAgainstModel checks after each step that what is in flight is owned, and that
// nothing else is.
func FuzzAgainstModel(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 2, 5, 2, 0})
	f.Add([]byte{0, 4, 0, 3, 0, 2, 4, 2, 0, 2, 1, 1, 5, 1, 2, 7, 7, 7, 9, 9, 1, 6, 6, 3, 3, 3, 3, 3, 3})
	f.Add([]byte("a shared queue, a ring of sends, and things that close between them 0123456789"))
	f.Fuzz(func(t *testing.T, program []byte) {
		program = program[:min(len(program), 500)]
		m := &model{t: t, owned: map[Kind][]issued{Send: nil, Recv: nil, Shared: nil}}
		for i := range m.things {
			m.things[i] = new(Used)
			require.NoError(t, m.things[i].Enter())
			defer m.things[i].Leave()
		}
		next := func() int {
			if len(program) == 0 {
				return 1
			}
			b := program[0]
			program = program[1:]
			return int(b)
		}
		m.settler = m.table.Settler()
		m.depth = 1 + next()%9
		m.newQueue()
		for len(program) > 0 {
			op := next()
			k := []Kind{Send, Recv, Shared}[op/16%3]
			switch op % 16 {
			case 0, 1, 2, 3, 4:
				m.post(k, next)
			case 5, 6, 7, 8, 9, 10:
				m.complete(k, next)
			case 11:
				m.shutThing(next() % len(m.things))
			case 12:
				i := next() % len(m.things)
				m.things[i].Reopen()
				m.shut[i] = false
			case 13:
				m.q.Reset()
				m.bury()
			case 14:
				m.table.Retire(m.q)
				m.bury()
				m.newQueue()
			}
			m.check()
		}
	})
}

func appendNew(list []int, i int) []int {
	if slices.Contains(list, i) {
		return list
	}
	return append(list, i)
}
