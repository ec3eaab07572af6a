//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// waker ends the sleep of one goroutine, the one in progress or the next.
type waker struct {
	woken  atomic.Bool
	cancel atomic.Pointer[context.CancelFunc] // of the sleep in progress
}

// Wake ends the sleep. It may be called from anywhere.
func (k *waker) Wake() {
	k.woken.Store(true)
	if cancel := k.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

// sleep returns when the channel has an event, ctx ends or Wake was called, or after what limit
// returns. limit is called when Wake already ends the sleep, so that it misses nothing.
func (k *waker) sleep(ctx context.Context, channel *verbs.CompChannel, limit func() time.Duration) error {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	k.cancel.Store(&cancel)
	defer k.cancel.Store(nil)
	d := limit()
	if k.woken.Swap(false) || d <= 0 {
		return nil
	}
	if d < fabric.Never {
		timed, stop := context.WithTimeout(wait, d)
		defer stop()
		wait = timed
	}
	_, err := channel.Wait(wait)
	k.woken.Store(false)
	if wait.Err() != nil || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
