package amtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
)

const (
	largeBlocks = 4
	largeBlock  = segmentSize / largeBlocks
)

// blocks is a rank's receiver of large payloads: it grants blocks of its segment, first come, first
// served, and refuses those whose second argument says so.
type blocks struct {
	mu      sync.Mutex
	free    []uint64
	waiting []*am.Announcement
	arrived int
	ended   int // without their data
	wrong   error
}

// larges are the receivers of all ranks.
func (g *group) larges() (*am.Large, []*blocks) {
	all := make([]*blocks, len(g.ranks))
	for i := range all {
		all[i] = &blocks{}
		for b := range uint64(largeBlocks) {
			all[i].free = append(all[i].free, b*largeBlock)
		}
	}
	of := func(a *am.Announcement) *blocks { return all[a.Endpoint().Rank()] }
	return g.table.HandleLarge("block", am.Receiver{
		Announced: func(a *am.Announcement) { of(a).announced(a) },
		Ended:     func(a *am.Announcement, err error) { of(a).take(a, err) },
	}), all
}

func (b *blocks) announced(a *am.Announcement) {
	if a.Arg(1) != 0 {
		_ = a.Refuse(fmt.Errorf("no room for %d", a.Arg(0))) // it may have been withdrawn
		return
	}
	b.mu.Lock()
	b.waiting = append(b.waiting, a)
	b.mu.Unlock()
	b.grant()
}

// grant gives what is free to who waits.
func (b *blocks) grant() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.free) > 0 && len(b.waiting) > 0 {
		a := b.waiting[0]
		b.waiting = b.waiting[1:]
		if a.Grant(b.free[0]) == nil {
			b.free = b.free[1:]
		}
	}
}

// take has back the block of a payload that ended.
func (b *blocks) take(a *am.Announcement, err error) {
	off, granted := a.Granted()
	b.mu.Lock()
	switch {
	case err != nil:
		b.ended++
	default:
		want := make([]byte, a.Size())
		fill(want, a.Arg(0))
		if b.arrived++; sum(want) != sum(a.Payload()) {
			b.wrong = fmt.Errorf("payload %#x of %d bytes arrived with other bytes", a.Arg(0), a.Size())
		}
	}
	if granted {
		b.free = append(b.free, off)
	}
	b.mu.Unlock()
	b.grant()
}

// large has many goroutines send payloads to ranks with memory for few, refused and given up now
// and then. Each one that was sent arrives and is right, and all memory comes back.
func (g *group) large() {
	const users = 12
	x, all := g.larges()
	g.open(am.Config{Credits: 4, Replies: 2, Sends: 4, ReplySends: 1, MaxMedium: 512})
	sent := make([]int, len(g.ranks)*users)
	g.several(users, func(rank, i int, l *am.Endpoint) error {
		rng := source(rank, i)
		payload := make([]byte, largeBlock)
		for k := range max(2, g.o.Rounds/10) {
			to, id, refuse := rng.IntN(len(g.endpoints)), rng.Uint64(), uint64(0)
			p := payload[:rng.IntN(largeBlock+1)]
			fill(p, id)
			ctx, cancel := g.ctx, context.CancelFunc(func() {})
			switch rng.IntN(8) {
			case 0:
				refuse = 1
			case 1:
				ctx, cancel = g.o.Host.WithTimeout(g.ctx, time.Duration(rng.IntN(300))*time.Microsecond)
			}
			err := x.Send(ctx, l, to, p, id, refuse)
			cancel()
			var refused *am.RefusedError
			switch {
			case err == nil && refuse == 0:
				sent[rank*users+i]++
			case errors.As(err, &refused) && refuse == 1 && refused.Rank == to && refused.Text == fmt.Sprintf("no room for %d", id):
			case errors.Is(err, context.DeadlineExceeded) && ctx != g.ctx:
			default:
				return fmt.Errorf("payload %d of %d bytes to rank %d: %v", k, len(p), to, err)
			}
		}
		return nil
	})
	g.settle()
	want, got := 0, 0
	for _, n := range sent {
		want += n
	}
	for i, b := range all {
		b.mu.Lock()
		if got += b.arrived; b.wrong != nil || len(b.free) != largeBlocks {
			g.Errorf("rank %d: %v; %d of %d blocks are back", i, b.wrong, len(b.free), largeBlocks)
		}
		b.mu.Unlock()
	}
	if got != want || want == 0 {
		g.Errorf("%d payloads were sent and %d arrived", want, got)
	}
}

// largeHolds has more payloads wait for memory than there are credits, reply buffers and send
// buffers, at either end. Calls pass them: what waits for memory holds nothing.
func (g *group) largeHolds() {
	const users = 20 // more than may be announced to one rank
	var mu sync.Mutex
	var waiting []*am.Announcement
	done, taken := 0, 0
	x := g.table.HandleLarge("later", am.Receiver{
		Announced: func(a *am.Announcement) { mu.Lock(); waiting = append(waiting, a); mu.Unlock() },
		Ended:     func(a *am.Announcement, err error) { mu.Lock(); taken++; mu.Unlock() },
	})
	echo := g.table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	g.open(am.Config{Credits: 1, Replies: 1, Sends: 1, ReplySends: 1})
	payload := make([]byte, 1000)
	announced := func() int { mu.Lock(); defer mu.Unlock(); return len(waiting) }
	g.several(users+1, func(rank, i int, l *am.Endpoint) error {
		to := 1 - rank
		switch {
		case rank > 1:
			return nil
		case i < users:
			err := x.Send(g.ctx, l, to, payload)
			mu.Lock()
			done++
			mu.Unlock()
			return err
		}
		for announced() < 32 && g.ctx.Err() == nil { // 16 of each
			g.o.Host.Sleep(time.Millisecond)
		}
		for k := range uint64(max(10, g.o.Rounds)) {
			if r, err := echo.Call(g.ctx, l, to, k); err != nil || r.Arg(0) != k {
				return fmt.Errorf("call %d: %v, %w", k, r.Args(), err)
			}
		}
		mu.Lock()
		early := done
		mu.Unlock()
		if n := announced(); rank == 0 && early > 0 || n < 32 {
			return fmt.Errorf("%d payloads are announced and %d were sent before one was granted memory", n, early)
		}
		if rank == 1 {
			return nil // rank 0 grants
		}
		for granted := 0; granted < 2*users && g.ctx.Err() == nil; {
			mu.Lock()
			some := waiting[granted:]
			mu.Unlock()
			for _, a := range some {
				if err := a.Grant(uint64(a.From()) * 1024); err != nil {
					return err
				}
				granted++
			}
			g.o.Host.Sleep(100 * time.Microsecond)
		}
		return nil
	})
	g.settle()
	if taken != 2*users || done != 2*users {
		g.Errorf("%d payloads were sent and %d taken, of %d", done, taken, 2*users)
	}
}

// largeDeath kills a rank to which payloads wait for memory, and which waits for memory itself.
func (g *group) largeDeath() {
	const victim, users = 1, 3
	x, all := g.larges()
	g.open(am.Config{Credits: 8, Replies: 8})
	for _, b := range all { // nobody has memory
		b.free = nil
	}
	victims, killed := g.o.Host.WithTimeout(g.ctx, g.o.Limit)
	defer killed()
	g.dead[victim] = true
	count := func(rank int) int { all[rank].mu.Lock(); defer all[rank].mu.Unlock(); return len(all[rank].waiting) }
	payload := make([]byte, 100)
	g.several(users+1, func(rank, i int, l *am.Endpoint) error {
		if i == users { // each rank's last goroutine
			if rank != victim {
				return nil
			}
			for (count(victim) < users*(len(g.ranks)-1) || count(0) < users) && g.ctx.Err() == nil {
				g.o.Host.Sleep(time.Millisecond)
			}
			g.o.Kill(victim)
			killed()
			return nil
		}
		if rank == victim {
			_ = x.Send(victims, l, 0, payload) // a dead rank may see what it will
			return nil
		}
		err := x.Send(g.ctx, l, victim, payload)
		if down := (*fabric.PeerDownError)(nil); !errors.As(err, &down) || down.Rank != victim {
			return fmt.Errorf("a payload to a rank that died: %v", err)
		}
		return nil
	})
	g.settle()
	b := all[0]
	if b.ended != users || b.arrived != 0 {
		g.Errorf("%d payloads of the dead rank have ended, and %d arrived, of %d", b.ended, b.arrived, users)
	}
	for _, a := range b.waiting {
		if err := a.Grant(0); !errors.Is(err, fabric.ErrPeerDown) {
			g.Errorf("memory for a payload of a dead rank: %v", err)
		}
	}
}
