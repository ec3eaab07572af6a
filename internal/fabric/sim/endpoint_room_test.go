package sim

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// The buffer of a message that the queue did not take goes back, which is no room.
func TestFullQueueIsWaitedForInWait(t *testing.T) {
	for _, copied := range []bool{true, false} {
		t.Run(fmt.Sprintf("copied=%v", copied), func(t *testing.T) { sendIntoFullQueue(t, copied) })
	}
}

func sendIntoFullQueue(t *testing.T, copied bool) {
	const queue, size = 2, 64
	w := newWorld(t, Config{Seed: 1, Ranks: 2, Queue: queue, MaxTime: time.Second})
	err := w.Run(func(ctx context.Context, r *Rank) error {
		if r.ID() == 1 {
			if err := r.Sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		p, err := r.Net().NewEndpoint(0, fabric.EndpointConfig{Slots: 4 * queue, SlotSize: size, Sends: 2 * queue})
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
			b := fabric.SendBuf{Data: make([]byte, size), ID: fabric.Copied}
			if !copied {
				var err error
				if b, err = p.Reserve(0); err != nil {
					return err
				}
			}
			err := p.Send(1, b, size, nil, 0, fabric.Solicited)
			if err != nil && !copied {
				p.Release(b)
			}
			return err
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

func TestReturnedUrgentBufferDoesNotWake(t *testing.T) {
	w := newWorld(t, Config{Seed: 1, Ranks: 1})
	err := w.Run(func(ctx context.Context, r *Rank) error {
		p, err := r.Net().NewEndpoint(0, fabric.EndpointConfig{Slots: 1, SlotSize: 64, Sends: 3, Reserved: 2})
		if err != nil {
			return err
		}
		defer p.Close()
		if _, err := p.Reserve(0); err != nil {
			return err
		}
		if _, err := p.Reserve(0); !errors.Is(err, fabric.ErrNoBuffer) {
			t.Errorf("all buffers but the reserved are in use: %v", err)
		}
		b, err := p.Reserve(fabric.Urgent)
		if err != nil {
			return err
		}
		p.Release(b)
		if p.(*endpoint).woken {
			t.Error("it is woken")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
