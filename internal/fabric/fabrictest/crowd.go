package fabrictest

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/ibconduit/conduit/internal/fabric"
)

// crowd: all ranks use all others at once, each lane in an order of its own. A network that keeps
// fewer connections than there are ranks makes and closes them all the time; what was put is there
// after its connection was closed, and each addition counts once.
func (g *group) crowd() {
	const area = 512 // of each lane, at each peer
	ls := g.spread()
	for _, r := range g.ranks {
		clear(r.Segment[:4096+area*len(ls)])
	}
	added := make([][]uint64, len(ls)) // by lane and peer
	g.each(len(ls), func(ctx context.Context, i int) (err error) {
		rng := rand.New(rand.NewPCG(5, uint64(i)))
		at := uint64(4096 + area*i)
		last := make([]byte, len(g.ranks)) // what every byte of the area is
		added[i] = make([]uint64, len(g.ranks))
		wait := func(h fabric.Handle, err error) error {
			if err == nil {
				_, err = ls[i].Wait(ctx, h)
			}
			return err
		}
		for round := range g.o.Rounds {
			peer := rng.IntN(len(g.ranks))
			got := make([]byte, area)
			switch rng.IntN(4) {
			case 0:
				_, h, e := ls[i].Atomic(peer, 0, fabric.Atomic{Operand: 1}, 0)
				err = wait(h, e)
				added[i][peer]++
			case 1:
				last[peer]++
				for k := range got {
					got[k] = last[peer]
				}
				err = wait(ls[i].Put(peer, at, got, fabric.Flag(rng.IntN(2))*fabric.Blocking))
			case 2:
				_, err = ls[i].Put(peer, at+area-1, []byte{last[peer]}, fabric.Implicit) // it is that already
			default:
				err = wait(ls[i].Get(peer, at, got, 0))
				for k := range got {
					if got[k] != last[peer] && err == nil {
						err = fmt.Errorf("round %d: byte %d at rank %d is %d, want %d", round, k, peer, got[k], last[peer])
					}
				}
			}
			if err != nil {
				return err
			}
		}
		return ls[i].Flush(ctx)
	})
	for peer, r := range g.ranks {
		want := uint64(0)
		for _, by := range added {
			want += by[peer]
		}
		if got := *wordAt(r.Segment, 0); got != want {
			g.Errorf("%d additions at rank %d gave %d", want, peer, got)
		}
	}
}
