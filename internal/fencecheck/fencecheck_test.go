package fencecheck

import (
	"strings"
	"testing"
)

// world is ranks with a worker each.
type world struct {
	*Checker
	w []*Worker
}

func newWorld(ranks int) *world {
	x := &world{Checker: New(ranks, nil)}
	for r := range ranks {
		x.w = append(x.w, x.Rank(r).NewWorker())
	}
	return x
}

// tells has a rank hear of a flag that another one puts. It acquires.
func (x *world) tells(from, to int) {
	x.w[from].Write(to, 1<<20+uint64(8*from), 8)
	x.w[to].Hear(to, 1<<20+uint64(8*from), 8)
	x.w[to].Acquire()
}

// wants demands so many reports, the last of which has texts.
func (x *world) wants(t *testing.T, n int, texts ...string) {
	t.Helper()
	all := x.Reports()
	if len(all) != n {
		t.Fatalf("%d reports, want %d: %v", len(all), n, all)
	}
	for _, s := range texts {
		if !strings.Contains(all[n-1].String(), s) {
			t.Errorf("%v does not mention %q", all[n-1], s)
		}
	}
}

func TestReportsNameWhatIsMissing(t *testing.T) {
	x := newWorld(3)
	x.w[0].Write(2, 64, 8)
	x.tells(0, 1)
	x.w[1].Read(2, 64, 8)
	x.wants(t, 1, "8 bytes at offset 64 of rank 2", "the first is not released", "a put of rank 0 at", "a get of rank 1 at", "fencecheck_test.go:")

	x = newWorld(3)
	x.w[0].Write(2, 64, 8)
	x.w[0].Release()
	x.w[0].Write(1, 0, 8)
	x.w[1].Hear(1, 0, 8)
	x.w[1].Read(2, 70, 4)
	x.wants(t, 1, "the second rank has not acquired since")

	x = newWorld(3)
	x.w[0].Write(2, 64, 8)
	x.w[0].Release()
	x.w[1].Write(2, 71, 1)
	x.wants(t, 1, "nothing orders them", "a put of rank 1 at")
	x.w[1].Write(2, 72, 1)
	x.wants(t, 1)
}

func TestAnOrderIsPassedOn(t *testing.T) {
	x := newWorld(4)
	x.w[0].Write(3, 64, 8)
	x.w[0].Release()
	x.tells(0, 1)
	x.tells(1, 2)
	if !x.w[2].Read(3, 64, 8) {
		t.Error("the read is out of order")
	}
	x.wants(t, 0)
	x.tells(0, 1) // of nothing new
	x.w[1].Write(3, 64, 8)
	x.wants(t, 1, "a get of rank 2", "a put of rank 1", "nothing orders them")
}

func TestAPayloadIsWordAsAPutIs(t *testing.T) {
	for reports := range 2 {
		x := newWorld(3)
		x.w[0].Write(2, 64, 8)
		if reports == 0 {
			x.w[0].Release()
		}
		x.w[0].Deposit(1, 0, 16)
		x.w[1].Hear(1, 8, 8)
		x.w[1].Acquire()
		x.w[1].Read(2, 64, 8)
		x.wants(t, reports)
	}
}

// Who has found a word of a payload, or of a put, does not know that the rest is there.
func TestAPayloadArrivesInParts(t *testing.T) {
	for name, write := range map[string]func(w *Worker, rank int, off uint64, n int){"payload": (*Worker).Deposit, "put": (*Worker).Write} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(2)
			write(x.w[0], 1, 0, 16)
			x.w[1].Hear(1, 8, 8)
			x.w[1].Acquire()
			x.w[1].Load(8, 8)
			x.wants(t, 0)
			x.w[1].Load(0, 8)
			x.wants(t, 1, "a put of rank 0")
		})
	}
}

func TestALineIsReportedOnce(t *testing.T) {
	told := 0
	c := New(2, func(Report) { told++ })
	a, b := c.Rank(0).NewWorker(), c.Rank(1).NewWorker()
	for i := range uint64(10) {
		a.Write(1, 64+8*i, 8)
		if b.Read(1, 64+8*i, 8) {
			t.Error("the read is in order")
		}
	}
	if n := len(c.Reports()); n != 1 || told != 1 {
		t.Errorf("%d reports, of which %d were told", n, told)
	}
}

// Reads of several ranks, and atomics of several ranks, are each compared with what follows.
func TestAllUnorderedAccessesCount(t *testing.T) {
	for order := range 2 {
		x := newWorld(4)
		for r := range 2 {
			x.w[r].Read(3, 64, 8)
		}
		x.tells(order, 2)
		x.w[2].Write(3, 64, 8)
		x.wants(t, 1, "a put of rank 2")

		x = newWorld(4)
		for r := range 2 {
			x.w[r].Update(3, 64, 8, false)
			x.w[r].Release()
		}
		x.wants(t, 0)
		x.tells(order, 2)
		x.w[2].Read(3, 64, 8)
		x.wants(t, 1, "a get of rank 2")
		x.tells(1-order, 2)
		x.w[2].Read(3, 64, 8)
		x.wants(t, 1)
	}
}

func TestAtomicsThatFetchOrderRanks(t *testing.T) {
	x := newWorld(3)
	fetch := func(r int) {
		x.w[r].Release()
		x.w[r].Update(2, 0, 8, true)()
		x.w[r].Hear(2, 0, 8)
		x.w[r].Acquire()
	}
	for i := range 10 {
		fetch(i % 2)
		x.w[i%2].Read(2, 64, 8)
		x.w[i%2].Write(2, 64, 8)
		fetch(i % 2)
	}
	x.wants(t, 0)
	x.w[0].Read(2, 64, 8)
	x.wants(t, 1)
}

func TestMeetingsOrderAsTheyFlow(t *testing.T) {
	for _, c := range []struct {
		flow     Flow
		root     int
		from, to int
		ordered  bool
	}{
		{FlowAll, 0, 2, 0, true}, {FlowFrom, 1, 1, 0, true}, {FlowFrom, 1, 0, 2, false}, {FlowTo, 2, 0, 2, true}, {FlowTo, 2, 0, 1, false},
		{FlowUp, 0, 0, 2, true}, {FlowUp, 0, 2, 0, false},
	} {
		x := newWorld(3)
		x.w[c.from].Write(2, 64, 8)
		x.w[c.from].Release()
		var ended []func()
		for r := range 3 {
			ended = append(ended, x.Rank(r).Meet(Meeting{Number: 1}, r, 3, c.flow, c.root))
		}
		for r := range 3 {
			ended[r]()
			x.w[r].Acquire()
		}
		if x.w[c.to].Read(2, 64, 8) != c.ordered || len(x.meetings) > 0 {
			t.Errorf("%+v: found %v; %d meetings are left", c, x.Reports(), len(x.meetings))
		}
	}
}

// A rank's own stores are there at once, and its workers are not held against each other.
func TestOwnMemoryNeedsNoRelease(t *testing.T) {
	x := newWorld(2)
	second := x.Rank(0).NewWorker()
	x.w[0].Store(64, 8)
	second.Load(64, 8)
	x.tells(0, 1)
	x.w[1].Read(0, 64, 8)
	x.wants(t, 0)
	x.w[0].Store(64, 8)
	x.wants(t, 1, "a get of rank 1", "a store of rank 0")
	x.Rank(1).Message(0)
	x.w[1].Write(0, 64, 8)
	x.wants(t, 1)
	second.Close()
	x.w[1].Release()
	x.Rank(0).Message(1)
	x.w[0].Load(64, 8)
	x.wants(t, 1)
}

func TestStaleCopiesNameTheLastWriter(t *testing.T) {
	x := newWorld(3)
	x.w[1].Stale(2, 64, 8)
	x.wants(t, 1, "a write of another process, or of the owner itself")
	x.w[0].Write(2, 64, 8)
	x.w[1].Stale(2, 64, 8)
	x.wants(t, 2, "a put of rank 0")
}

// An access of a word is told as one of a program would be.
func BenchmarkAccess(b *testing.B) {
	for name, do := range map[string]func(w *Worker, off uint64){
		"read":  func(w *Worker, off uint64) { w.Read(1, off, 8) },
		"write": func(w *Worker, off uint64) { w.Write(1, off, 8) },
	} {
		b.Run(name, func(b *testing.B) {
			x := newWorld(2)
			for i := range b.N {
				do(x.w[0], uint64(i*8%(64<<10)))
			}
		})
	}
}
