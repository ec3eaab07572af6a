//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/verbs"
)

// refusing skips a test where the device takes any request, and fails it later.
func refusing(t *testing.T) {
	if device := rdmatest.Device(t); strings.HasPrefix(device, "rxe") {
		t.Skipf("%s takes a request of a wrong kind; the device in user space (hack/softverbs) refuses it", device)
	}
}

// refuse has the device refuse the next message that is copied.
func (o *end) refuse() {
	o.p.mu.Lock()
	o.p.out.quick.wr.Opcode = verbs.Opcode(99)
	o.p.mu.Unlock()
}

// Slots are posted before it with the same call, and messages without a completion are in flight.
func TestARefusedCopiedMessageEndsItsPeer(t *testing.T) {
	refusing(t)
	for silent := range 3 {
		m := newMessageRig(t, 3, Config{Lanes: 1, Messages: MessageConfig{Keepalive: -1}}, endpointConfig)
		m.connectAll()
		o := m.ends[0]
		_, err := m.ends[2].send(0, 8, true, 0)
		m.must("send", err)
		for o.arrived[2] < 2 {
			m.must("poll", o.poll(time.Millisecond)) // and gives the slot back
			m.must("poll", m.ends[2].poll(time.Millisecond))
		}
		o.sendShort(1, silent, 0)
		o.refuse()
		b := make([]byte, 8)
		m.must("send", o.p.Send(1, fabric.SendBuf{Data: b, ID: fabric.Copied}, 8, nil, 0, 0))
		m.only(0, 2)
		m.work(func(o *end) (bool, error) { return o.rank != 0 || o.down[1] != nil, nil })
		var post *verbs.PostError
		if !errors.As(o.down[1], &post) || o.down[2] != nil || o.p.Stats().Posted != endpointConfig.Slots {
			t.Errorf("rank 1 is down because of %v, rank 2 of %v; %+v", o.down[1], o.down[2], o.p.Stats())
		}
		o.p.out.quick.wr.Opcode = verbs.OpSend
		o.sendShort(2, 8, 0)
		m.work(func(o *end) (bool, error) { return o.rank != 2 || o.arrived[0] == 9, nil })
	}
}

// No completion wakes it.
func TestASleepingPollerLearnsOfARefusedMessage(t *testing.T) {
	refusing(t)
	for _, copied := range []bool{true, false} {
		m := newMessageRig(t, 2, Config{Lanes: 1, Messages: MessageConfig{Keepalive: -1}}, endpointConfig)
		m.connectAll()
		o := m.ends[0]
		ctx, cancel := context.WithCancel(m.ctx)
		down := make(chan error, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			err := o.pollAndWait(ctx, func(e fabric.Event) error {
				if e.Kind == fabric.Down {
					down <- e.Err
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		for asleep := false; !asleep && m.ctx.Err() == nil; time.Sleep(time.Millisecond) {
			o.p.mu.Lock()
			asleep = o.p.sleeping && !o.p.armedAny
			o.p.mu.Unlock()
		}
		time.Sleep(5 * time.Millisecond)
		if copied {
			o.refuse()
			m.must("send", o.p.Send(1, fabric.SendBuf{Data: make([]byte, 8), ID: fabric.Copied}, 8, nil, 0, 0))
		} else {
			b, err := o.p.Reserve(0)
			m.must("reserve", err)
			o.p.mu.Lock()
			o.p.out.inline = 1 << 20 // more than the queue pair has
			o.p.mu.Unlock()
			m.must("send", o.p.Send(1, b, 400, nil, 1, 0))
		}
		select {
		case err := <-down:
			if post := (*verbs.PostError)(nil); !errors.As(err, &post) {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("copied %v: the poller sleeps on", copied)
		}
		cancel()
		wg.Wait()
	}
}
