package am_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// traffic is random traffic of many ranks in a simulation.
type traffic struct {
	cfg      sim.Config
	endpoint am.Config // those buffers that are 0 are few
	calls    int       // requests of each rank
	posts    bool      // not only calls, and Long payloads, which need segments
	kill     []int     // who dies meanwhile
	slow     []int     // who polls slowly
	stall    time.Duration

	workers int           // goroutines of each rank that send; 0 is 1
	serve   bool          // one more serves
	late    time.Duration // how long it takes at most until a goroutine that was woken runs
	fickle  bool          // requests are also prepared, tried, cancelled and given up, and replies deferred
}

// outcome is what traffic left behind, with all endpoints at rest.
type outcome struct {
	traffic
	err      error
	rnr      uint64         // messages that met no buffer
	hash     uint64         // of the world's trace
	live     []*am.Endpoint // of the ranks that were not killed
	ended    int64          // requests of theirs
	died     int64          // requests, of whomever, that found their rank dead
	messages uint64         // that the live ranks sent, replies included
}

// load is a traffic that runs.
type load struct {
	traffic
	dead        map[int]bool
	endpoints   []*am.Endpoint
	left        atomic.Int64 // goroutines that are not done; below 0: something went wrong
	unquiet     atomic.Int64 // ranks whose messages have not all arrived
	ended, died atomic.Int64
	echo, count *am.Handler
	long, hold  *am.Handler
	held        [][]*am.DeferredReply // by rank
}

func (x traffic) run(t *testing.T) *outcome {
	t.Helper()
	w, err := sim.New(x.cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	x.workers = max(x.workers, 1)
	r := &load{traffic: x, dead: map[int]bool{}, endpoints: make([]*am.Endpoint, x.cfg.Ranks), held: make([][]*am.DeferredReply, x.cfg.Ranks)}
	r.register()
	for i, rank := range x.slow {
		w.Slow(rank, time.Duration(1+i)*20*time.Microsecond)
	}
	for i, rank := range x.kill {
		r.dead[rank] = true
		w.At(time.Duration(1+i)*300*time.Microsecond, func() { w.Kill(rank) })
	}
	live := int64(x.cfg.Ranks - len(x.kill))
	r.left.Store(live * int64(x.workers))
	r.unquiet.Store(live)
	o := &outcome{traffic: x, err: w.Run(r.rank), rnr: w.RNR(), hash: w.TraceHash()}
	o.ended, o.died = r.ended.Load(), r.died.Load()
	for i, l := range r.endpoints {
		if l != nil && !r.dead[i] {
			o.live = append(o.live, l)
			o.messages += l.Stats().Network.Sends
		}
	}
	return o
}

func (r *load) register() {
	table := am.NewTable()
	r.echo = table.Handle("echo", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload()), c.Arg(0)) })
	r.count = table.Handle("count", func(*am.Call) {})
	r.long = table.Handle("long", func(c *am.Call) { _ = c.Reply(c.Arg(0), uint64(len(c.Payload()))) })
	r.hold = table.Handle("hold", func(c *am.Call) {
		held := &r.held[c.Endpoint().Rank()]
		*held = append(*held, c.Defer(0))
	})
	c := &r.endpoint
	c.Table, c.StallAfter, c.SilentAfter, c.PingAfter = table, r.stall, r.stall/2, r.stall/8
	for _, x := range []struct {
		v *int
		n int
	}{{&c.Credits, 16}, {&c.Replies, 8}, {&c.Spares, 4}, {&c.Sends, 8}, {&c.ReplySends, 4}, {&c.MaxMedium, 512}} {
		if *x.v == 0 {
			*x.v = x.n
		}
	}
}

// rank is the life of one rank.
func (r *load) rank(ctx context.Context, s *sim.Rank) error {
	cfg := r.endpoint
	cfg.Rank, cfg.Size, cfg.Host, cfg.Segment = s.ID(), s.Size(), lateHost{amtest.SimHost(s), s, r.late}, s.Segment()
	l, err := am.Open(s.Net(), 0, cfg)
	if err != nil {
		return err
	}
	r.endpoints[s.ID()] = l
	if r.serve {
		s.Go("serve", func(ctx context.Context) error {
			if err := l.Serve(ctx); !errors.Is(err, am.ErrClosed) {
				return err
			}
			return nil
		})
	}
	if r.fickle {
		s.Go("answer", func(ctx context.Context) error { return r.answer(ctx, s) })
	}
	for range r.workers {
		s.Go("send", func(ctx context.Context) error { return r.work(ctx, s, l) })
	}
	for r.left.Load() > 0 {
		if err := s.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	if r.dead[s.ID()] { // it has to die first
		return s.Sleep(ctx, time.Hour)
	}
	if err := l.Quiesce(ctx); err != nil {
		r.unquiet.Store(-1) // the others need not wait
		return err
	}
	r.unquiet.Add(-1)
	for r.unquiet.Load() > 0 { // who closes before a post to it has found a connection never hears of it
		if err := s.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	if err := l.Drain(ctx); err != nil {
		return err
	}
	if err := s.Sleep(ctx, 5*time.Millisecond); err != nil { // control messages may be on their way
		return err
	}
	return l.Close()
}

// work is what one goroutine of a rank sends.
func (r *load) work(ctx context.Context, s *sim.Rank, l *am.Endpoint) error {
	for i := range uint64(r.calls / r.workers) {
		to := s.Rand().IntN(s.Size())
		err := r.request(ctx, s, l, to, i)
		switch {
		case err == nil:
		case r.dead[to] && errors.Is(err, fabric.ErrPeerDown):
			r.died.Add(1)
		default:
			r.left.Store(-1 << 32) // the others need not go on
			return fmt.Errorf("request %d to rank %d: %w", i, to, err)
		}
		if !r.dead[s.ID()] {
			r.ended.Add(1)
		}
	}
	if !r.dead[s.ID()] {
		r.left.Add(-1)
	}
	return nil
}

// lateHost is a machine on which it takes a while until a goroutine that was woken runs.
type lateHost struct {
	am.Host
	r    *sim.Rank
	most time.Duration
}

func (h lateHost) NewParker() am.Parker { return lateParker{h.Host.NewParker(), h} }

type lateParker struct {
	am.Parker
	h lateHost
}

func (p lateParker) Park(ctx context.Context) error {
	err := p.Parker.Park(ctx)
	if p.h.most > 0 {
		p.h.Sleep(time.Duration(p.h.r.Rand().Int64N(int64(p.h.most))))
	}
	return err
}

// answer answers what the rank holds, after a while.
func (r *load) answer(ctx context.Context, s *sim.Rank) error {
	for r.left.Load() > 0 || r.unquiet.Load() > 0 {
		if err := s.Sleep(ctx, time.Duration(1+s.Rand().IntN(1000))*time.Microsecond); err != nil {
			return err
		}
		held := r.held[s.ID()]
		r.held[s.ID()] = nil
		for _, token := range held {
			if err := token.ReplyWith(am.Medium(make([]byte, s.Rand().IntN(100))), 7); err != nil && !errors.Is(err, am.ErrClosed) {
				return err
			}
		}
	}
	return nil
}

// waver sends a request of a random kind in a way that may end before it is sent or answered.
func (r *load) waver(ctx context.Context, s *sim.Rank, l *am.Endpoint, to int, i uint64) (err error) {
	short, cancel := s.WithTimeout(ctx, time.Duration(s.Rand().IntN(2000))*time.Microsecond)
	defer cancel()
	kinds := 6
	if r.endpoint.Sends == 1 { // a message cannot be prepared
		kinds = 4
	}
	switch s.Rand().IntN(kinds) {
	case 0:
		_, err = r.echo.CallWith(short, l, to, am.Medium(make([]byte, 64)), i)
	case 1:
		_, err = r.hold.Call(short, l, to)
	case 2:
		_, err = r.hold.Call(ctx, l, to)
	case 3:
		err = r.count.PostWith(short, l, to, am.Medium(make([]byte, 64)), i)
	case 4:
		var p *am.Prepared
		if p, err = r.echo.Prepare(ctx, l, to, 8); err == nil {
			_, err = p.CommitCall(short, i)
		}
	case 5:
		var p *am.Prepared
		if p, err = r.count.Prepare(ctx, l, to, 8); err != nil {
			break
		}
		for err = p.Commit(am.NoWait, i); errors.Is(err, am.ErrNoCredit) || errors.Is(err, am.ErrNotConnected) || errors.Is(err, am.ErrQueueFull); err = p.Commit(am.NoWait, i) {
			if s.Rand().IntN(20) == 0 {
				p.Cancel()
				return nil
			}
			if err = s.Sleep(ctx, 20*time.Microsecond); err != nil {
				break
			}
		}
		if err != nil {
			p.Cancel()
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// request sends one of a random kind and checks its reply.
func (r *load) request(ctx context.Context, s *sim.Rank, l *am.Endpoint, to int, i uint64) error {
	b := make([]byte, s.Rand().IntN(100))
	if r.fickle && s.Rand().IntN(3) == 0 {
		return r.waver(ctx, s, l, to, i)
	}
	kind := 0
	if r.posts {
		kind = s.Rand().IntN(4)
	}
	switch kind {
	case 1:
		return r.count.PostWith(ctx, l, to, am.Medium(b), i)
	case 2:
		reply, err := r.long.CallWith(ctx, l, to, am.Long(uint64(s.ID()%8)*128, b), i)
		if err == nil && (reply.Arg(0) != i || reply.Arg(1) != uint64(len(b))) {
			err = fmt.Errorf("reply %v to %d bytes", reply.Args(), len(b))
		}
		return err
	}
	reply, err := r.echo.CallWith(ctx, l, to, am.Medium(b), i)
	if err == nil && (reply.Arg(0) != i || len(reply.Data) != len(b)) {
		err = fmt.Errorf("reply %v with %d bytes to %d", reply.Args(), len(reply.Data), len(b))
	}
	return err
}

// allEnded checks that every request of a live rank ended with its reply, or with the death of its
// target.
func (o *outcome) allEnded(t *testing.T) {
	t.Helper()
	if o.err != nil {
		t.Fatalf("seed %d: %v", o.cfg.Seed, o.err)
	}
	if want := int64((o.cfg.Ranks - len(o.kill)) * o.workers * (o.calls / o.workers)); o.ended != want {
		t.Errorf("seed %d: %d requests ended, want %d", o.cfg.Seed, o.ended, want)
	}
	if len(o.kill) == 0 && o.died != 0 {
		t.Errorf("seed %d: %d requests found their rank dead, and all live", o.cfg.Seed, o.died)
	}
}

// noneMetNoBuffer checks the counters of receivers that were not ready.
func (o *outcome) noneMetNoBuffer(t *testing.T) {
	t.Helper()
	if o.rnr != 0 {
		t.Errorf("seed %d: %d messages met no buffer", o.cfg.Seed, o.rnr)
	}
}

// booksAgree checks the identities between the counters of every rank, and without deaths those
// between ranks.
func (o *outcome) booksAgree(t *testing.T) {
	t.Helper()
	for _, l := range o.live {
		s := l.Stats()
		if err := s.Check(); err != nil || s.CallsInFlight != 0 || s.Broken != 0 {
			t.Fatalf("seed %d, rank %d: %v, %+v", o.cfg.Seed, l.Rank(), err, s)
		}
	}
	if len(o.kill) > 0 {
		return
	}
	if err := am.Reconcile(o.live); err != nil {
		t.Errorf("seed %d: %v", o.cfg.Seed, err)
	}
}
