//go:build linux && cgo

package twohosts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
)

// The handlers of mixed and silent, and what they count.
var (
	mixedTable = am.NewTable()
	// check compares the payload with the pattern of its arguments (bytes, seed), and replies with
	// the seed and another pattern.
	check = mixedTable.Handle("check", func(c *am.Call) {
		n, seed := int(c.Arg(0)), int(c.Arg(1))
		if !slices.Equal(c.Payload(), pattern(n, seed)) {
			wrong.Add(1)
		}
		if _, long := c.Offset(); long || n == 0 {
			_ = c.Reply(uint64(seed)) // what becomes of it shows where it is awaited
			return
		}
		_ = c.ReplyWith(am.Medium(pattern(n, seed+1)), uint64(seed))
	})
	count = mixedTable.Handle("count", func(c *am.Call) {
		if !slices.Equal(c.Payload(), pattern(int(c.Arg(0)), int(c.Arg(1)))) {
			wrong.Add(1)
		}
		posted.add(c.From())
	})
	met = mixedTable.Handle("met", func(c *am.Call) { meetings[c.Arg(0)].Add(1) })

	wrong    atomic.Uint64 // payloads that were not what was sent
	posted   = tally{n: make(map[int]uint64)}
	meetings [2]atomic.Int32
)

// tally counts posts by sender.
type tally struct {
	mu sync.Mutex
	n  map[int]uint64
}

func (t *tally) add(rank int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[rank]++
}

func (t *tally) of(rank int) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n[rank]
}

// mixedTraffic is traffic of every kind of message between each rank and all others, in turn. It
// returns how many posts it sent to each.
func mixedTraffic(ctx context.Context, j *conduit.Job, w *conduit.Worker, rounds int, ranks []int) (sent map[int]uint64, err error) {
	sent = make(map[int]uint64)
	for i := range rounds {
		for _, to := range ranks {
			if to == j.Rank() {
				continue
			}
			if err := exchangeMixed(ctx, w, j.Rank(), to, i, sent); err != nil {
				return sent, fmt.Errorf("round %d: %w", i, err)
			}
			if n := wrong.Load(); n > 0 {
				return sent, fmt.Errorf("round %d: %d payloads arrived changed", i, n)
			}
		}
	}
	return sent, nil
}

// exchangeMixed sends one message of every kind to a rank.
func exchangeMixed(ctx context.Context, w *conduit.Worker, from, to, i int, sent map[int]uint64) error {
	seed := i*1000 + from*10
	n := 1 + i*131%4000
	longs := 1 + i*7919%(200<<10)
	call := func(p am.Payload, n int) error {
		r, err := check.CallWith(ctx, w, to, p, uint64(n), uint64(seed))
		return answer(&r, err, n, seed)
	}
	if err := call(am.Payload{}, 0); err != nil {
		return err
	}
	// A call that is not waited for overlaps with the posts.
	pending, err := check.Start(ctx, w, to, am.Medium(pattern(n, seed)), uint64(n), uint64(seed))
	if err != nil {
		return err
	}
	for k := range 4 {
		size := n * k / 3 // the first has no payload
		if err := count.PostWith(ctx, w, to, am.Medium(pattern(size, seed+k)), uint64(size), uint64(seed+k)); err != nil {
			return err
		}
		sent[to]++
	}
	p, err := count.Prepare(ctx, w, to, n)
	if err != nil {
		return err
	}
	copy(p.Bytes(), pattern(n, seed+7))
	if err := p.Commit(ctx, uint64(n), uint64(seed+7)); err != nil {
		return err
	}
	sent[to]++
	r, err := pending.Wait(ctx)
	if err := answer(&r, err, n, seed); err != nil {
		return err
	}
	r, err = check.CallWith(ctx, w, to, am.Long(block(from), pattern(longs, seed)), uint64(longs), uint64(seed))
	return answer(&r, err, 0, seed)
}

// answer checks a reply.
func answer(r *am.Reply, err error, n, seed int) error {
	if err != nil {
		return err
	}
	if r.Len() != 1 || r.Arg(0) != uint64(seed) {
		return fmt.Errorf("a reply has the arguments %d, want %d", r.Args(), seed)
	}
	if n > 0 && !slices.Equal(r.Data, pattern(n, seed+1)) {
		return fmt.Errorf("a reply of %d bytes arrived changed", n)
	}
	return nil
}

// mixed is traffic of every kind of message, after which every post has arrived once and all
// accounts are right. If a rank dies in its midst the others go on without it.
func mixed(ctx context.Context, j *conduit.Job, w *conduit.Worker, rounds int) error {
	ranks := make([]int, j.Size())
	for r := range ranks {
		ranks[r] = r
	}
	if err := meet(ctx, j, w, 0, ranks); err != nil {
		return err
	}
	fmt.Printf("rank %d: traffic\n", j.Rank())
	sent, err := mixedTraffic(ctx, j, w, rounds, ranks)
	if errors.Is(err, conduit.ErrPeerDown) {
		return survive(ctx, j, w, err)
	}
	if err != nil {
		return err
	}
	if err := arrivedOnce(ctx, j, sent); err != nil {
		return err
	}
	return checkAccounts(ctx, j, w)
}

// silent connects every rank to all others, and then waits, without sending, for what a keepalive
// finds.
func silent(ctx context.Context, j *conduit.Job, w *conduit.Worker, _ int) error {
	if _, err := mixedTraffic(ctx, j, w, 1, []int{0, 1, 2}[:j.Size()]); err != nil {
		return err
	}
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	fmt.Printf("rank %d: traffic\n", j.Rank())
	for len(j.DownRanks()) == 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for rank, cause := range j.DownRanks() {
		return &conduit.PeerDownError{Rank: rank, Op: "silence", Cause: cause}
	}
	return nil
}

var (
	farewellTable = am.NewTable()
	bye           = farewellTable.Handle("bye", func(c *am.Call) {
		fmt.Printf("rank %d: %d of rank %d arrived\n", c.Endpoint().Rank(), c.Arg(0), c.From())
	})
)

// farewell has rank 0 post a few words and leave while the cable is out; the others wait for it in
// Close.
func farewell(ctx context.Context, j *conduit.Job, w *conduit.Worker, words int) error {
	if j.Rank() == 0 {
		if err := bye.Post(ctx, w, 1, 0); err != nil { // it makes the connection
			return err
		}
	}
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	fmt.Printf("rank %d: traffic\n", j.Rank())
	if j.Rank() != 0 {
		return nil
	}
	time.Sleep(farewellAfter)
	for i := range words {
		if err := bye.Post(ctx, w, 1, uint64(i+1)); err != nil {
			return err
		}
	}
	fmt.Printf("rank %d: leaves\n", j.Rank())
	return nil
}

// farewellAfter is the time to cut a cable.
const farewellAfter = 4 * time.Second

// arrivedOnce: what all posted has arrived everywhere, no more and no less.
func arrivedOnce(ctx context.Context, j *conduit.Job, sent map[int]uint64) error {
	mine := make([]byte, 8*j.Size())
	for r := range j.Size() {
		binary.LittleEndian.PutUint64(mine[8*r:], sent[r])
	}
	all, err := j.AllGather(ctx, mine)
	if err != nil {
		return err
	}
	for from, b := range all {
		want := binary.LittleEndian.Uint64(b[8*j.Rank():])
		for posted.of(from) < want && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if got := posted.of(from); got != want {
			return fmt.Errorf("%d posts of rank %d arrived, %d were sent", got, from, want)
		}
	}
	return nil
}

// survive: the ranks that live exchange as many messages again, and every credit and buffer comes
// back. Without another error it returns the one that names the death.
func survive(ctx context.Context, j *conduit.Job, w *conduit.Worker, found error) error {
	for {
		fmt.Printf("rank %d: found ranks %v down: %v\n", j.Rank(), dead(j), found)
		known, living := dead(j), []int(nil)
		for r := range j.Size() {
			if !slices.Contains(known, r) {
				living = append(living, r)
			}
		}
		for _, r := range known {
			if _, err := check.Call(ctx, w, r, 0, 0); !errors.Is(err, conduit.ErrPeerDown) {
				return fmt.Errorf("a call to the dead rank %d: %w", r, err)
			}
		}
		err := among(ctx, j, w, living)
		if err == nil {
			fmt.Printf("rank %d: survives with %v\n", j.Rank(), living)
			return found
		}
		if len(dead(j)) == len(known) {
			return fmt.Errorf("among survivors: %v", err) // not wrapped: it is not the death that is to be found
		}
	}
}

// among has the ranks that live exchange messages.
func among(ctx context.Context, j *conduit.Job, w *conduit.Worker, living []int) error {
	if _, err := mixedTraffic(ctx, j, w, 30, living); err != nil {
		return err
	}
	if err := meet(ctx, j, w, 1, living); err != nil {
		return err
	}
	return checkAccounts(ctx, j, w)
}

func dead(j *conduit.Job) (ranks []int) {
	for r := range j.DownRanks() {
		ranks = append(ranks, r)
	}
	slices.Sort(ranks)
	return ranks
}

// meet returns when all the ranks have come here.
func meet(ctx context.Context, j *conduit.Job, w *conduit.Worker, phase int, ranks []int) error {
	for _, r := range ranks {
		if _, err := met.Call(ctx, w, r, uint64(phase)); err != nil {
			return err
		}
	}
	for int(meetings[phase].Load()) < len(ranks) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// checkAccounts waits until all rest and looks at every endpoint's counters and credits. No message
// may have met a receiver without a buffer.
func checkAccounts(ctx context.Context, j *conduit.Job, w *conduit.Worker) error {
	for r := range j.Size() {
		l := w.Endpoint(r)
		if err := l.Quiesce(ctx); err != nil {
			return err
		}
		if err := rests(ctx, l); err != nil {
			return fmt.Errorf("the endpoint to rank %d: %w", r, err)
		}
	}
	return nil
}

// rests waits until the account is that of an endpoint at rest: others may still be sending.
func rests(ctx context.Context, l *am.Endpoint) error {
	until := time.Now().Add(20 * time.Second)
	for {
		s := l.Stats()
		err := s.Check()
		if err == nil {
			err = am.CheckAccounts(l)
		}
		if err == nil || time.Now().After(until) || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
