package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// uplink carries what a client does to the hub. No method blocks.
type uplink interface {
	contribute(o op, seq uint32, blob []byte)
	giveUp(seq uint32, why *cause)
	fail(why *cause)
}

// echoWait bounds how long a rank waits after the end of its context for the hub's
// answer: the outcome, if that was on its way, or which ranks were missing.
const echoWait = 500 * time.Millisecond

// hubClient is one rank's end of the collectives.
type hubClient struct {
	rank, size int
	up         uplink
	echo       time.Duration // echoWait; longer in tests only

	mu     sync.Mutex
	seq    uint32
	call   chan event // of the collective in progress, capacity 1
	broken error      // why there can be no more collectives
	closed bool
	done   chan struct{} // closed with the client
	lost   chan Loss
	dead   []bool     // ranks already reported on lost
	first  *failure   // the first loss
	left   []*failure // ranks that left, which is no loss as long as no rank is lost
	mute   []bool     // ranks that gave up or broke the protocol, but live
}

func newHubClient(rank, size int) *hubClient {
	// At most one loss per rank: the channel never blocks its sender.
	return &hubClient{rank: rank, size: size, echo: echoWait, done: make(chan struct{}), lost: make(chan Loss, size),
		dead: make([]bool, size), mute: make([]bool, size)}
}

// collective contributes a blob and waits for all others'.
func (s *hubClient) collective(ctx context.Context, o op, blob []byte) ([][]byte, error) {
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return nil, fmt.Errorf("%v after Close: %w", o, os.ErrClosed)
	case s.broken != nil:
		s.mu.Unlock()
		return nil, fmt.Errorf("%v: %w", o, s.broken)
	}
	s.seq++
	seq, call := s.seq, make(chan event, 1)
	s.call = call
	s.mu.Unlock()

	s.up.contribute(o, seq, blob)
	select {
	case ev := <-call:
		return s.result(o, ev)
	case <-ctx.Done():
		return s.giveUp(ctx, o, seq, call)
	}
}

func (s *hubClient) giveUp(ctx context.Context, o op, seq uint32, call chan event) ([][]byte, error) {
	err := context.Cause(ctx)
	s.up.giveUp(seq, &cause{kind: causeGaveUp, text: fmt.Sprintf("gave up %v %d: %v", o, seq, err), err: err})
	t := time.NewTimer(s.echo)
	defer t.Stop()
	select {
	case ev := <-call:
		if ev.failure != nil && ev.failure.rank == s.rank {
			// The text comes back with the missing ranks; keep our own error.
			f := *ev.failure // which other ranks hold as well
			f.why = &cause{kind: causeGaveUp, text: f.why.text, err: err}
			ev.failure = &f
		}
		return s.result(o, ev)
	case <-t.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call = nil
	if s.broken == nil {
		s.broken = fmt.Errorf("this rank gave up: %w", err)
	}
	return nil, fmt.Errorf("%v: %w", o, err)
}

func (s *hubClient) result(o op, ev event) ([][]byte, error) {
	switch {
	case ev.failure != nil:
		return nil, fmt.Errorf("%v: %w", o, ev.failure.err())
	case ev.outcome == nil:
		return nil, fmt.Errorf("%v: %w", o, os.ErrClosed)
	}
	blobs := ev.outcome.blobs
	if ev.outcome.shared {
		own := make([][]byte, len(blobs))
		for i, b := range blobs {
			own[i] = bytes.Clone(b)
		}
		blobs = own
	}
	return blobs, nil
}

// deliver takes the hub's events, in order. An outcome that was delivered
// stays valid whatever comes after it.
func (s *hubClient) deliver(ev event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if f := ev.failure; f != nil {
		for _, l := range s.lossesLocked(f) {
			if !s.dead[l.rank] {
				s.dead[l.rank] = true
				s.lost <- s.lossLocked(l)
			}
		}
		if s.broken == nil {
			s.broken = f.err()
		}
	} else if ev.outcome.seq != s.seq {
		return
	}
	if s.call != nil {
		s.call <- ev
		s.call = nil
	}
}

// hasLost reports whether a rank was reported as lost.
func (s *hubClient) hasLost(rank int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead[rank]
}

// lossesLocked are the losses that follow from a failure. A rank that leaves is lost if it gave up
// before or says that it does not wait for the others, which may still need it. Once a rank is
// lost, each one that leaves, or has left, is lost too: the ranks could not agree to leave.
func (s *hubClient) lossesLocked(f *failure) []*failure {
	switch f.why.kind {
	case causeGaveUp, causeMisuse:
		s.mute[f.rank] = true
		return nil
	case causeLeft:
		if !s.mute[f.rank] && s.first == nil && f.why.text == "" {
			s.left = append(s.left, f)
			return nil
		}
	}
	if s.first == nil {
		s.first = f
	}
	all := append([]*failure{f}, s.left...)
	s.left = nil
	return all
}

// leftEarly describes a rank that left but not in good order.
const leftEarly = "left the job without the others"

// lossLocked makes of a failure what Lost delivers. Of a rank that left because of another it names
// that one, which the user looks for.
func (s *hubClient) lossLocked(f *failure) Loss {
	worded := func(f *failure, more string) *LostError {
		why := f.why
		if why.kind == causeLeft && (why.text == "" || more != "") {
			why = &cause{kind: causeLeft, text: leftEarly + more}
		}
		return (&failure{f.rank, f.process, why}).err()
	}
	if s.first == f {
		return Loss{f.rank, worded(f, "")}
	}
	return Loss{f.rank, worded(f, ", for "+strings.TrimPrefix(worded(s.first, "").Error(), "bootstrap: "))}
}

// close ends the client; the others receive why.
func (s *hubClient) close(why *cause) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	if s.call != nil {
		s.call <- event{}
		s.call = nil
	}
	close(s.lost)
	close(s.done)
	s.mu.Unlock()
	if why != nil {
		s.up.fail(why)
	}
}
