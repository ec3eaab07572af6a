package amtest_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/segment"
)

const (
	childSegment = 1 << 18
	Goroutines   = 4
	callsEach    = 200
	unanswered   = 50 // requests to the victim from which on it owes the answers
)

var table = crc64.MakeTable(crc64.ECMA)

// childRank is the rank of this process.
type childRank struct {
	rank, size, victim int
	in                 *bufio.Scanner
	net                fabric.Messenger
	seg                []byte
	l                  *am.Endpoint
	serving            atomic.Int64
	echo, long, count  *am.Handler
}

func childMain(role string) int {
	if err := childRun(role); err != nil {
		fmt.Fprintf(os.Stderr, "rank %s over %s: %v\n", os.Getenv(envRank), role, err)
		return 1
	}
	return 0
}

func number(name string) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		panic(err)
	}
	return n
}

func childRun(role string) (err error) {
	r := &childRank{rank: number(envRank), size: number(envSize), victim: number(envVictim), in: bufio.NewScanner(os.Stdin)}
	r.in.Buffer(nil, 1<<20)
	ctx, cancel := context.WithTimeout(context.Background(), watchdogLimit)
	defer cancel()
	m, err := segment.Map(segment.Config{Size: childSegment, Shared: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	r.seg = m.Bytes()
	if r.net, err = networks[role](r.rank, r.size, m); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.net.Close()) }()
	addrs, err := r.gather(r.net.Addr())
	if err != nil {
		return err
	}
	if err := r.net.Connect(ctx, addrs, func(_ context.Context, b []byte) ([][]byte, error) { return r.gather(b) }); err != nil {
		return err
	}
	if err := r.open(); err != nil {
		return err
	}
	if err := r.life(ctx); err != nil {
		return errors.Join(err, r.l.Close())
	}
	return r.l.Close()
}

// networks make a rank of each kind.
var networks = map[string]func(rank, size int, m *segment.Mapping) (fabric.Messenger, error){}

func (r *childRank) open() (err error) {
	t := am.NewTable()
	r.echo = t.Handle("echo", func(c *am.Call) {
		if r.rank == r.victim && r.serving.Add(1) > unanswered {
			c.Defer(0) // for ever
			return
		}
		if err := c.ReplyWith(am.Medium(c.Payload()), append([]uint64{crc64.Checksum(c.Payload(), table)}, c.Args()...)...); err != nil {
			panic(err)
		}
	})
	r.long = t.Handle("long", func(c *am.Call) {
		off, _ := c.Offset()
		_ = c.Reply(off, crc64.Checksum(r.seg[off:off+c.Arg(0)], table))
	})
	r.count = t.Handle("count", func(*am.Call) {})
	// Fewer buffers than callers, so that every kind of wait is met.
	r.l, err = am.Open(r.net, 0, am.Config{Rank: r.rank, Size: r.size, Table: t, Segment: r.seg, Credits: 8, Replies: 3, Spares: 2,
		Sends: 3, ReplySends: 2, MaxMedium: 2048, StallAfter: watchdogLimit / 2, SilentAfter: watchdogLimit / 3})
	return err
}

// life is all that a rank does.
func (r *childRank) life(ctx context.Context) error {
	if _, err := r.gather(nil); err != nil { // all ports are open
		return err
	}
	everybody := make([]int, 0, r.size)
	for i := range r.size {
		if i != r.rank {
			everybody = append(everybody, i)
		}
	}
	if r.victim < 0 {
		if err := r.traffic(ctx, everybody); err != nil {
			return err
		}
		return r.settle(ctx)
	}
	if r.rank == r.victim {
		return r.die(ctx)
	}
	if err := r.mourn(ctx); err != nil {
		return err
	}
	var left []int
	for _, i := range everybody {
		if i != r.victim {
			left = append(left, i)
		}
	}
	if err := r.traffic(ctx, left); err != nil {
		return fmt.Errorf("after the death of rank %d: %w", r.victim, err)
	}
	return r.settle(ctx)
}

// die serves until it owes answers, then waits to be killed.
func (r *childRank) die(ctx context.Context) error {
	for r.serving.Load() < unanswered+3 {
		if ctx.Err() != nil {
			return fmt.Errorf("it was called %d times", r.serving.Load())
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println("kill")
	return r.l.Serve(ctx)
}

// mourn calls the victim until it is dead. Each call ends, none of them well after the first that
// does not.
func (r *childRank) mourn(ctx context.Context) error {
	return concurrently(func(i int) error {
		for k := uint64(0); ; k++ {
			reply, err := r.echo.Call(ctx, r.l, r.victim, k)
			var down *fabric.PeerDownError
			switch {
			case errors.As(err, &down) && down.Rank == r.victim:
				if err := r.count.Post(ctx, r.l, r.victim); !errors.Is(err, fabric.ErrPeerDown) {
					return fmt.Errorf("post to a dead rank: %v", err)
				}
				return nil
			case err != nil || reply.Arg(1) != k:
				return fmt.Errorf("call %d to the victim: %v, %w", k, reply.Args(), err)
			}
		}
	})
}

func concurrently(f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, Goroutines)
	for i := range Goroutines {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// traffic is random requests of all kinds from several Goroutines. Each writes Long payloads to a
// place of its own.
func (r *childRank) traffic(ctx context.Context, peers []int) error {
	return concurrently(func(i int) error {
		rng := rand.New(rand.NewPCG(uint64(r.rank), uint64(i)))
		room := childSegment / (r.size * Goroutines)
		mine := uint64((r.rank*Goroutines + i) * room)
		for k := range uint64(callsEach) {
			to := peers[rng.IntN(len(peers))]
			var err error
			switch rng.IntN(4) {
			case 0:
				err = r.count.PostWith(ctx, r.l, to, am.Medium(make([]byte, rng.IntN(100))))
			case 1:
				err = r.write(ctx, to, mine, random(rng, rng.IntN(room)))
			default:
				err = r.mirror(ctx, to, k, random(rng, rng.IntN(2048)))
			}
			if err != nil {
				return fmt.Errorf("goroutine %d, request %d to rank %d: %w", i, k, to, err)
			}
		}
		return nil
	})
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func (r *childRank) write(ctx context.Context, to int, off uint64, b []byte) error {
	reply, err := r.long.CallWith(ctx, r.l, to, am.Long(off, b), uint64(len(b)))
	if err != nil {
		return err
	}
	if reply.Arg(0) != off || reply.Arg(1) != crc64.Checksum(b, table) {
		return fmt.Errorf("%d bytes at %d are not what was written", len(b), off)
	}
	return nil
}

func (r *childRank) mirror(ctx context.Context, to int, k uint64, b []byte) error {
	reply, err := r.echo.CallWith(ctx, r.l, to, am.Medium(b), k)
	if err != nil {
		return err
	}
	if string(reply.Data) != string(b) || reply.Arg(0) != crc64.Checksum(b, table) || reply.Arg(1) != k {
		return fmt.Errorf("%d bytes came back as %d others", len(b), len(reply.Data))
	}
	return nil
}

// settle waits until all that was sent has come, and checks the books.
func (r *childRank) settle(ctx context.Context) error {
	for {
		if err := r.l.Quiesce(ctx); err != nil {
			return err
		}
		s := r.l.Stats()
		mine := binary.LittleEndian.AppendUint64(nil, s.Calls+s.Posts)
		all, err := r.gather(binary.LittleEndian.AppendUint64(mine, s.Requests))
		if err != nil {
			return err
		}
		var sent, arrived uint64
		for _, b := range all {
			if len(b) == 16 {
				sent, arrived = sent+binary.LittleEndian.Uint64(b), arrived+binary.LittleEndian.Uint64(b[8:])
			}
		}
		// What went to the dead has no other end: then one look is enough.
		if sent == arrived || r.victim >= 0 {
			return r.check(s)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d requests were sent and %d arrived", sent, arrived)
		}
		time.Sleep(time.Millisecond)
	}
}

// check looks at the books at rest, which the last handler may still be on its way to.
func (r *childRank) check(s am.Stats) (err error) {
	for range 2000 {
		s = r.l.Stats()
		if err = errors.Join(s.Check(), am.CheckAccounts(r.l)); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if s.Broken+s.BadNotes+s.Panics > 0 {
		return fmt.Errorf("a network broke something: %+v, %v", s, r.l.Errors())
	}
	_, gathered := r.gather(nil) // nobody leaves while others look
	return errors.Join(err, gathered)
}
