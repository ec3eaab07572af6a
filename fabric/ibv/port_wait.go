//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"
)

// Now is the time since the port was opened.
func (p *port) Now() time.Duration { return time.Since(p.origin) }

// After sets an alarm.
func (p *port) After(t time.Duration) {
	p.alarmMu.Lock()
	for now := p.Now(); len(p.alarms) > 1 && p.alarms[1] <= now; { // one that is due is enough, where nobody waits
		p.alarms = slices.Delete(p.alarms, 0, 1)
	}
	i, found := slices.BinarySearch(p.alarms, t)
	if !found {
		p.alarms = slices.Insert(p.alarms, i, t)
	}
	p.alarmMu.Unlock()
	if p.cancel.Load() != nil && i == 0 { // a Wait in progress knows of later ones only
		p.Wake()
	}
}

// rings takes the alarms that are due, and says when the next one is.
func (p *port) rings(now time.Duration) (due bool, next time.Duration) {
	p.alarmMu.Lock()
	defer p.alarmMu.Unlock()
	k := 0
	for k < len(p.alarms) && p.alarms[k] <= now {
		k++
	}
	p.alarms = slices.Delete(p.alarms, 0, k)
	if len(p.alarms) > 0 {
		return k > 0, p.alarms[0]
	}
	return k > 0, never
}

// Wake ends a Wait.
func (p *port) Wake() {
	p.woken.Store(true)
	if cancel := p.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

// Wait arms the completion queue, looks once more, and parks in the runtime's poller.
func (p *port) Wait(ctx context.Context) error {
	if err := p.enter("wait"); err != nil {
		return err
	}
	defer p.poller.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	p.returnNotes()
	p.mu.Unlock()
	err := p.sleep(ctx)
	p.mu.Lock()
	p.sleeping, p.armedAny = false, false
	if p.closed {
		err = p.errClosed("wait")
	}
	p.mu.Unlock()
	if err == nil && ctx.Err() != nil && p.events.len() == 0 {
		err = context.Cause(ctx)
	}
	return err
}

// sleep returns when there may be something, without an error when ctx ends.
func (p *port) sleep(ctx context.Context) error {
	if p.events.len() > 0 || p.woken.Swap(false) {
		return nil
	}
	if err := p.arm(); err != nil {
		return err
	}
	// What came between the last poll and the arming makes no event.
	p.mu.Lock()
	n, _, err := p.turn(0)
	p.makeAndPart()
	if n > 0 || err != nil || p.downSeen != p.n.downSeq.Load() {
		return err
	}
	now := p.Now()
	until := p.nextTimer()
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	p.cancel.Store(&cancel)
	defer p.cancel.Store(nil)
	due, next := p.rings(now) // behind the store: a later After wakes
	if until = min(until, next); due || p.woken.Swap(false) || until <= now {
		return nil
	}
	if until < never {
		timed, stop := context.WithTimeout(wait, until-now)
		defer stop()
		wait = timed
	}
	_, err = p.listener.channel.Wait(wait)
	p.woken.Store(false)
	if wait.Err() != nil || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// arm posts what waits and arms the completion queue: for the messages that are to wake, and
// for any completion while one of this end's own is awaited.
func (p *port) arm() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.flush(); err != nil {
		return err
	}
	p.sleeping, p.armedAny = true, p.out > 0
	return p.listener.cq.Arm(!p.armedAny)
}
