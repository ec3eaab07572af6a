package fabrictest

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

var faults = []fault{
	{name: "a put to another rank than the last one is lost", caught: []string{"EveryRankReachesEveryRankAtOnce"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			last := l.n
			if l.n = 1 + peer; last != 0 && last != l.n {
				return fabric.Done, nil
			}
			return l.Lane.Put(peer, off, src, f)
		}},
	{
		name: "every seventh put is lost",
		caught: []string{"RandomOperationsMatchAModel", "EveryAlignmentAndShortLengthIsExact", "ImplicitOperationsCompleteAtFlush",
			"SourceMayBeReusedWhenPromised", "LanesAreLimitedAndReusable"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			if l.n++; l.n%7 == 0 {
				src = nil
			}
			if l.net.lanes++; l.net.lanes%7 == 0 { // on fresh lanes too
				src = nil
			}
			return l.Lane.Put(peer, off, src, f)
		},
	},
	{
		name:   "the last byte of some puts is wrong",
		caught: []string{"LargeTransfersAreExact", "MappedIsTheSegment", "BlockingOperationsAreExact", "WaitWordHonoursConditionContextAndStop"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			if len(src) > 4 && (off == 4097 || off == 2000 || off == 8 || off == 64) {
				src = src[:len(src)-1]
				src = append(append([]byte{}, src...), ^byte(0x55))
			}
			return l.Lane.Put(peer, off, src, f)
		},
	},
	{
		name:   "bounds are ignored",
		caught: []string{"RangesOutsideTheSegmentAreRefused"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			h, err := l.Lane.Put(peer, off, src, f)
			var be *fabric.BoundsError
			if errors.As(err, &be) {
				return fabric.Done, nil
			}
			return h, err
		},
	},
	{
		name:   "the sum of offset and length overflows",
		caught: []string{"RangesOutsideTheSegmentAreRefused"},
		get: func(l *faultyLane, peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
			if off+uint64(len(dst)) < off {
				return fabric.Done, nil
			}
			return l.Lane.Get(peer, off, dst, f)
		},
	},
	{
		name:   "empty transfers at the end are refused",
		caught: []string{"ZeroLengthsAreFine"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			if len(src) == 0 && off > 1 {
				return fabric.Done, &fabric.BoundsError{Op: "put", Rank: peer, Off: off}
			}
			return l.Lane.Put(peer, off, src, f)
		},
	},
	{
		name:   "atomics are rounded to a word",
		caught: []string{"MisalignedAndUnknownAtomicsAreRefused"},
		atomic: func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error) {
			off &^= a.Type.Size() - 1
			old, _, err := l.Lane.Atomic(peer, off, a, f)
			return old, err
		},
	},
	{
		name:   "ranks wrap around",
		caught: []string{"RanksOutsideTheJobAreRefused"},
		get: func(l *faultyLane, peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
			return l.Lane.Get(((peer%3)+3)%3, off, dst, f)
		},
	},
	{
		name:   "any address is reachable",
		caught: []string{"HostileAddressesAreRefused"},
		reach:  func(*faultyNet, int, []byte) error { return nil },
	},
	{
		name:   "atomics return the new value",
		caught: []string{"RandomOperationsMatchAModel", "HandlesAreCollectedOnceInAnyOrder", "AtomicsOfManyLanesAddUp", "SwapsOfManyLanesLoseNothing", "BlockingOperationsAreExact"},
		atomic: func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error) {
			old, _, err := l.Lane.Atomic(peer, off, a, f)
			return a.Apply(old), err
		},
	},
	{
		name:   "fetch-add is a get and a put",
		caught: []string{"AtomicsOfManyLanesAddUp"},
		atomic: func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error) {
			if a.Op != fabric.FetchAdd || a.Type != fabric.Uint64 {
				old, _, err := l.Lane.Atomic(peer, off, a, f)
				return old, err
			}
			b := make([]byte, 8)
			_, err := l.Lane.Get(peer, off, b, 0)
			old := *wordAt(b, 0)
			time.Sleep(time.Microsecond) // for another to come between
			_, err2 := l.Lane.Put(peer, off, word8(old+a.Operand), 0)
			return old, errors.Join(err, err2)
		},
	},
	{
		name:   "an atomic of 32 bits puts its neighbour back",
		caught: []string{"AtomicsOnHalvesOfAWordAreExact"},
		atomic: func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error) {
			if a.Type.Size() == 8 {
				old, _, err := l.Lane.Atomic(peer, off, a, f)
				return old, err
			}
			at := off &^ 7
			b := make([]byte, 8)
			_, err := l.Lane.Get(peer, at, b, 0)
			word := *wordAt(b, 0)
			time.Sleep(time.Microsecond)
			_, err2 := l.Lane.Put(peer, at, word8(a.Outer(off, word)), 0)
			return a.Inner(off, word), errors.Join(err, err2)
		},
	},
	{
		name:   "atomics of 32 bits carry into their neighbour",
		caught: []string{"EveryAtomicOfEveryTypeIsExact"},
		atomic: func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error) {
			if a.Op != fabric.FetchAdd || a.Type.Size() == 8 || off%8 != 0 {
				old, _, err := l.Lane.Atomic(peer, off, a, f)
				return old, err
			}
			old, _, err := l.Lane.Atomic(peer, off, fabric.Atomic{Operand: uint64(uint32(a.Operand))}, f)
			return uint64(uint32(old)), err
		},
	},
	{
		name:   "signed words are compared as unsigned ones",
		caught: []string{"EveryAtomicOfEveryTypeIsExact"},
		atomic: func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error) {
			switch a.Type {
			case fabric.Int64:
				a.Type = fabric.Uint64
			case fabric.Int32:
				a.Type = fabric.Uint32
			}
			old, _, err := l.Lane.Atomic(peer, off, a, f)
			return old, err
		},
	},
	{
		name:   "implicit atomics are lost",
		caught: []string{"ImplicitAtomicsCompleteAtFlush", "EveryAtomicOfEveryTypeIsExact"},
		atomic: func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error) {
			if f&fabric.Implicit != 0 {
				return 0, nil
			}
			old, _, err := l.Lane.Atomic(peer, off, a, f)
			return old, err
		},
	},
	{
		name:   "a put overtakes the one before it",
		caught: []string{"DataIsThereWhenTheFlagIs"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			if f&fabric.Implicit == 0 {
				return l.Lane.Put(peer, off, src, f)
			}
			if off != 0 { // data: held until the flag has gone
				l.held = append(l.held, func() error { _, err := l.Lane.Put(peer, off, src, f); return err })
				return fabric.Done, nil
			}
			h, err := l.Lane.Put(peer, off, src, f)
			time.Sleep(time.Millisecond) // for the reader to look
			return h, errors.Join(err, l.release())
		},
	},
	{
		name:   "sources are read at the flush",
		caught: []string{"SourceMayBeReusedWhenPromised", "OperationsAllocateNothing"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			l.held = append(l.held, func() error { _, err := l.Lane.Put(peer, off, src, f); return err })
			return fabric.Done, nil
		},
		flush: func(l *faultyLane, ctx context.Context) error { return errors.Join(l.release(), l.Lane.Flush(ctx)) },
	},
	{
		name:   "flush does not wait for puts",
		caught: []string{"FlushOrdersPutsBeforeGets", "ImplicitOperationsCompleteAtFlush"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			l.held = append(l.held, func() error { _, err := l.Lane.Put(peer, off, src, f); return err })
			return fabric.Done, nil
		},
		get: func(l *faultyLane, peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
			h, err := l.Lane.Get(peer, off, dst, f)
			time.Sleep(time.Microsecond) // a long way to the other's memory
			return h, errors.Join(err, l.release())
		},
	},
	{
		name:   "wait fails with its context though the operation is done for",
		caught: []string{"WaitEndsWithItsContext"},
		wait: func(l *faultyLane, ctx context.Context, h fabric.Handle) (uint64, error) {
			if ctx.Err() != nil {
				return 0, errors.New("cancelled")
			}
			return l.Lane.Wait(ctx, h)
		},
	},
	{
		name:   "waiting for a word ignores stop",
		caught: []string{"WaitWordHonoursConditionContextAndStop"},
		word: func(l *faultyLane, ctx context.Context, word *uint64, c fabric.Cond, v uint64, stop func() error) error {
			ctx, cancel := context.WithTimeout(ctx, 1e6)
			defer cancel()
			return l.Lane.WaitWord(ctx, word, c, v, nil)
		},
	},
	{
		name:   "waiting for a word hides the cause of the context's end",
		caught: []string{"WaitWordHonoursConditionContextAndStop"},
		word: func(l *faultyLane, ctx context.Context, word *uint64, c fabric.Cond, v uint64, stop func() error) error {
			if err := l.Lane.WaitWord(ctx, word, c, v, stop); err == nil || ctx.Err() == nil {
				return err
			}
			return ctx.Err()
		},
	},
	{
		name:   "what is abandoned is not done",
		caught: []string{"AbandonedOperationsAreDoneByFlush"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			l.held = append(l.held, func() error { _, err := l.Lane.Put(peer, off, src, f); return err })
			return fabric.Handle(len(l.held)), nil
		},
		abandon: func(l *faultyLane, h fabric.Handle) {
			if h != fabric.Done && int(h) <= len(l.held) {
				l.held[h-1] = func() error { return nil }
			}
		},
		flush: func(l *faultyLane, ctx context.Context) error { return errors.Join(l.release(), l.Lane.Flush(ctx)) },
	},
	{
		name:   "the last piece of a batch is lost",
		caught: []string{"BatchesMayBeLargerThanDepth", "GathersAndScattersAreExact", "RandomOperationsMatchAModel"},
		post: func(l *faultyLane, b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
			if p := b.Pieces(); len(p) > 0 && p[len(p)-1].Kind != fabric.KindAtomic {
				p[len(p)-1].Buf = nil
			}
			return l.Lane.Post(b, q, f)
		},
	},
	{
		name:   "a group is told twice",
		caught: []string{"BatchesMayBeLargerThanDepth", "BatchesOfTwoPartsDoNotMix", "RandomOperationsMatchAModel"},
		post: func(l *faultyLane, b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
			err := l.Lane.Post(b, q, f)
			if g := b.Groups(); err == nil && len(g) > 0 {
				q.Expect()
				q.Tell(g[0].Tag, nil)
			}
			return err
		},
	},
	{
		name:   "all parts are told in one place",
		caught: []string{"BatchesOfTwoPartsDoNotMix"},
		post: func(l *faultyLane, b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
			if first, ok := l.sink.(*fabric.Completions); ok && q != nil {
				q = first
			}
			l.sink = q
			return l.Lane.Post(b, q, f)
		},
		await: func(_ *faultyLane, _ context.Context, q *fabric.Completions) error {
			if q.Len() == 0 {
				return fabric.ErrIdle
			}
			return nil
		},
	},
	{
		name:   "batches are posted up to the mistake",
		caught: []string{"BadBatchesPostNothing"},
		post: func(l *faultyLane, b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
			err := l.Lane.Post(b, q, f)
			if err != nil && len(b.Pieces()) > 0 {
				p := &b.Pieces()[0]
				_, _ = l.Lane.Put(p.Peer, p.Off, p.Buf, 0)
			}
			return err
		},
	},
	{
		name:   "memory can be closed at any time, and used behind that",
		caught: []string{"MemoryInUseStaysRegistered", "BadBatchesPostNothing"},
		post: func(l *faultyLane, b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
			for i := range b.Pieces() {
				b.Pieces()[i].Memory = nil
			}
			return l.Lane.Post(b, q, f)
		},
	},
	{
		name:   "await ends without a completion",
		caught: []string{"AwaitEndsWithItsContext"},
		await:  func(*faultyLane, context.Context, *fabric.Completions) error { return nil },
	},
	{
		name:   "a flush forgets what a dead peer lost",
		caught: []string{"FlushNamesWhatADeadPeerLost"},
		flush:  func(l *faultyLane, ctx context.Context) error { _ = l.Lane.Flush(ctx); return nil },
	},
	{
		name:   "a lane is quiet before a put has happened",
		caught: []string{"QuietLanesHaveNothingInFlight"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			l.held = append(l.held, func() error { _, err := l.Lane.Put(peer, off, src, f); return err })
			return fabric.Done, nil
		},
		quiet: func(*faultyLane, int) bool { return true },
	},
	{
		name:   "a lane is not quiet before a flush",
		caught: []string{"QuietLanesHaveNothingInFlight"},
		quiet:  func(l *faultyLane, _ int) bool { return l.n == 0 },
		get: func(l *faultyLane, peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
			l.n++
			return l.Lane.Get(peer, off, dst, f)
		},
		flush: func(l *faultyLane, ctx context.Context) error {
			l.n = 0
			return l.Lane.Flush(ctx)
		},
	},
	{
		name:   "groups that fail are told as complete",
		caught: []string{"PeerDownFailsItsGroupsAlone"},
		await: func(l *faultyLane, ctx context.Context, q *fabric.Completions) error {
			err := l.Lane.Await(ctx, q)
			var c [64]fabric.Completion
			n := q.Take(c[:])
			for i := range n {
				q.Expect()
				q.Tell(c[i].Tag, nil)
			}
			return err
		},
	},
	{
		name:   "waiting for a word ends at once",
		caught: []string{"WaitWordHonoursConditionContextAndStop", "DataIsThereWhenTheFlagIs"},
		word: func(*faultyLane, context.Context, *uint64, fabric.Cond, uint64, func() error) error {
			return nil
		},
	},
	{
		name:   "refused operations are counted",
		caught: []string{"RangesOutsideTheSegmentAreRefused", "CountersAddUp"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			l.Counters().Puts++
			return l.Lane.Put(peer, off, src, f)
		},
	},
	{
		name:   "gets allocate",
		caught: []string{"OperationsAllocateNothing"},
		get: func(l *faultyLane, peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
			l.sink = make([]byte, 64)
			return l.Lane.Get(peer, off, dst, f)
		},
	},
	{
		name:   "deaths are ignored",
		caught: []string{"DownPeerFailsAndOthersDoNot"},
		down:   func(*faultyNet, int, error) {},
	},
	{
		name:   "one death is that of all",
		caught: []string{"DownPeerFailsAndOthersDoNot"},
		down: func(n *faultyNet, rank int, cause error) {
			for r := range 3 {
				n.Network.PeerDown(r, cause)
			}
		},
	},
	{
		name:   "operations lost with a peer are not counted",
		caught: []string{"PeerDownEndsWhatIsInFlight"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			h, err := l.Lane.Put(peer, off, src, f)
			if errors.Is(err, fabric.ErrPeerDown) {
				l.Counters().Puts++
			}
			return h, err
		},
	},
	{
		name:   "mapped memory is of another rank",
		caught: []string{"MappedIsTheSegment", "RanksOutsideTheJobAreRefused"},
		mapped: func(l *faultyLane, peer int) []byte { return l.Lane.Mapped((((peer + 1) % 3) + 3) % 3) },
	},
	{
		name:   "closed lanes are not given back",
		caught: []string{"LanesAreLimitedAndReusable", "CloseIsIdempotentAndRefusesWithLanes"},
		limits: func(l fabric.Limits) fabric.Limits { l.Lanes = 2; return l },
		newLane: func(n *faultyNet) (fabric.Lane, error) {
			if n.lanes++; n.lanes > 2 {
				return nil, fabric.ErrNoLane
			}
			return n.Network.NewLane()
		},
		netEnd: func(n *faultyNet) error {
			if n.lanes > 0 {
				_ = n.Network.Close()
				return fabric.ErrBusy
			}
			return n.Network.Close()
		},
	},
	{
		name:   "the limit of lanes is not kept",
		caught: []string{"LanesAreLimitedAndReusable"},
		limits: func(l fabric.Limits) fabric.Limits { l.Lanes = 2; return l },
	},
	{
		name:   "networks close under their lanes",
		caught: []string{"CloseIsIdempotentAndRefusesWithLanes"},
		netEnd: func(n *faultyNet) error { _ = n.Network.Close(); return nil },
	},
	{
		name:   "closed lanes still work",
		caught: []string{"LanesAreLimitedAndReusable"},
		put: func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
			h, err := l.Lane.Put(peer, off, src, f)
			if errors.Is(err, os.ErrClosed) {
				return fabric.Done, nil
			}
			return h, err
		},
	},
}
