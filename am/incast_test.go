package am_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

const (
	incastSenders = 8
	incastEach    = 32       // payloads of a sender
	incastBytes   = 64 << 10 // of a payload
	incastRate    = 12.5e9   // bytes a second that the receiver consumes: a link's, 100 Gbit/s
)

// incast is eight ranks that send to one, which consumes their payloads one after another, in
// memory of a budget. Tasks of a simulation run one at a time.
type incast struct {
	b       *flow.Budget
	table   *am.Table
	x       *am.Large
	free    []uint64 // offsets in rank 0's segment
	offers  map[*am.Announcement]*flow.Offer
	arrived []*am.Announcement
	eaten   map[int]int // payloads of each sender
	began   time.Duration
	ended   time.Duration
	l       []*am.Endpoint
	done    int
}

func (x *incast) announced(a *am.Announcement) {
	o, err := x.b.Offer(a.From(), int64(a.Size()), func(o *flow.Offer) {
		x.offers[a] = o
		off := x.free[len(x.free)-1]
		x.free = x.free[:len(x.free)-1]
		if err := a.Grant(off); err != nil {
			panic(err)
		}
	})
	if err != nil {
		panic(err)
	}
	x.offers[a] = o
}

func (x *incast) consume(ctx context.Context, s *sim.Rank) error {
	for n := 0; n < incastSenders*incastEach; {
		if len(x.arrived) == 0 {
			if err := s.Sleep(ctx, 100*time.Nanosecond); err != nil {
				return err
			}
			continue
		}
		a := x.arrived[0]
		x.arrived = x.arrived[1:]
		if err := s.Sleep(ctx, time.Duration(float64(a.Size())/incastRate*1e9)); err != nil {
			return err
		}
		off, _ := a.Granted()
		x.free = append(x.free, off)
		x.eaten[a.From()]++
		x.offers[a].Release()
		n++
	}
	x.ended = s.World().Now()
	return nil
}

func (x *incast) rank(ctx context.Context, s *sim.Rank) error {
	cfg := am.Config{Rank: s.ID(), Size: s.Size(), Table: x.table, Host: amtest.SimHost(s), Segment: s.Segment(),
		SegmentSize: func(r int) uint64 { return uint64(len(s.World().Rank(r).Segment())) }}
	l, err := am.Open(s.Net(), 0, cfg)
	if err != nil {
		return err
	}
	x.l[s.ID()] = l
	if s.ID() == 0 {
		serving, stop := s.WithTimeout(ctx, time.Minute)
		s.Go("serve", func(context.Context) error { _ = l.Serve(serving); return nil }) // what comes is handled at once
		err = x.consume(ctx, s)
		stop()
	} else {
		data, left := make([]byte, incastBytes), incastEach
		for range incastEach {
			s.Go("send", func(ctx context.Context) error {
				defer func() { left-- }()
				return x.x.Send(ctx, l, 0, data)
			})
		}
		for left > 0 && err == nil {
			err = s.Sleep(ctx, time.Microsecond)
		}
	}
	x.done++
	for x.done < s.Size() && err == nil {
		err = s.Sleep(ctx, 10*time.Microsecond)
	}
	if err != nil {
		return err
	}
	if err := l.Quiesce(ctx); err != nil {
		return err
	}
	return l.Close()
}

// runIncast returns how long it takes with memory for so many payloads.
func runIncast(t *testing.T, payloads int) time.Duration {
	t.Helper()
	x := &incast{table: am.NewTable(), offers: map[*am.Announcement]*flow.Offer{}, eaten: map[int]int{}, l: make([]*am.Endpoint, incastSenders+1)}
	x.x = x.table.HandleLarge("in", am.Receiver{Announced: x.announced, Ended: func(a *am.Announcement, err error) {
		if err != nil {
			panic(err)
		}
		x.arrived = append(x.arrived, a)
	}})
	w, err := sim.New(sim.Config{Ranks: incastSenders + 1, Seed: 5, MaxTime: time.Minute, Segment: func(rank int) []byte {
		if rank > 0 {
			return make([]byte, 8)
		}
		return make([]byte, payloads*incastBytes)
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	for i := range payloads {
		x.free = append(x.free, uint64(i*incastBytes))
	}
	limit := int64(payloads * incastBytes)
	if x.b, err = flow.NewBudget(flow.BudgetConfig{Limit: limit, Small: -1, Unscheduled: -1, Now: w.Now, StallAfter: time.Hour}, flow.Surroundings{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Run(x.rank); err != nil {
		t.Fatal(err)
	}
	if s := x.b.Stats(); s.Peak > limit || s.Bulk != 0 || x.b.Check() != nil {
		t.Errorf("of %d bytes %d were held at once, %d are: %v", limit, s.Peak, s.Bulk, x.b.Check())
	}
	for r := 1; r <= incastSenders; r++ {
		if x.eaten[r] != incastEach {
			t.Errorf("%d payloads of rank %d arrived", x.eaten[r], r)
		}
	}
	return x.ended - x.began
}

// Eight senders to one whose budget has memory for four payloads are as fast as with memory for
// all, in virtual time. With less they are as fast as can be: memory of a payload is in use from
// its grant until the payload is consumed, so for a way of the grant, one of the data, and the
// times that both the link and the receiver take for it.
func TestIncastInABudgetKeepsItsThroughput(t *testing.T) {
	const each = incastBytes / incastRate * 1e9 // ns of a payload on the link, and at the receiver
	const least, usual = 2*each + 2*1500, 2*each + 2*2250
	ample := runIncast(t, incastSenders*incastEach)
	line := fmt.Sprintf("memory for %d payloads of %d: %v", incastSenders*incastEach, incastBytes, ample)
	for _, payloads := range []int{1, 2, 3, 4, 8, 16, 32} {
		share := float64(ample) / float64(runIncast(t, payloads))
		line += fmt.Sprintf("; for %d: %.3f of the throughput", payloads, share)
		if most := float64(payloads) * each; share < 0.95*min(1, most/usual) || share > 1.01*min(1, most/least) {
			t.Errorf("memory for %d payloads: %.3f of the throughput with memory for all, want %.3f to %.3f", payloads, share,
				min(1, most/usual), min(1, most/least))
		}
	}
	t.Log(line)
}
