package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// What was copied for nothing goes back, which is no room.
func TestWhoCopiesIntoAFullQueueSleepsUntilThereIsRoom(t *testing.T) {
	const queue, size = 2, 64
	w := newWorld(t, Config{Seed: 1, Ranks: 2, Queue: queue})
	err := w.Run(func(ctx context.Context, r *Rank) error {
		if r.ID() == 1 {
			if err := r.Sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		p, err := r.Net().NewPort(0, fabric.PortConfig{Slots: 4 * queue, SlotSize: size, Sends: 2 * queue})
		if err != nil {
			return err
		}
		defer p.Close()
		if r.ID() == 1 {
			for got := 0; got <= queue; {
				n, err := p.Poll(make([]fabric.Event, queue), 20*time.Microsecond)
				if got += n; err != nil {
					return err
				}
			}
			return nil
		}
		send := func() error {
			return p.Send(1, fabric.SendBuf{Data: make([]byte, size), ID: fabric.Copied}, size, nil, 0, fabric.Solicited)
		}
		for range queue {
			if err := send(); err != nil {
				return err
			}
		}
		if err := send(); !errors.Is(err, fabric.ErrAgain) || errors.Is(err, fabric.ErrNoBuffer) {
			t.Errorf("a full queue: %v", err)
		}
		waits := 0
		for ; errors.Is(send(), fabric.ErrAgain) && waits < 100; waits++ {
			if err := p.Wait(ctx); err != nil {
				return err
			}
			if _, err := p.Poll(make([]fabric.Event, queue), 0); err != nil {
				return err
			}
		}
		if waits > 10 { // connecting wakes
			t.Errorf("it was woken %d times before there was room", waits)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
