package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ibconduit/conduit/internal/ranklist"
)

// root is rank 0 of a TCP job: it listens, gathers the hellos of the others,
// comes to a verdict, and from then on runs the hub.
type root struct {
	*member // rank 0's own place at the hub
	rv      *rendezvous
	conf    *tls.Config
	ln      listeners
	hub     *hub

	mu       sync.Mutex
	raw      map[net.Conn]bool // connections that are not links yet
	links    []*link           // by rank; of the accepted
	others   []*link           // of the refused, until they have read the reason
	hellos   []hello
	arrived  int
	refused  map[string]int
	started  bool
	verdict  *JoinError // why not, once decided
	decided  chan struct{}
	handlers sync.WaitGroup
	failures chan event // failures on their way to rank 0 itself
	closing  sync.Once
}

// hasArrived: the end of such a rank shows at its connection.
func (r *root) hasArrived(rank int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rank < len(r.links) && r.links[rank] != nil
}

// deliverOwn takes the hub's events for rank 0. A failure waits until it is on its
// way to all others: the program may exit at once on it, and they would
// name rank 0 for the act of another rank.
func (r *root) deliverOwn(ev event) {
	if ev.failure != nil {
		r.failures <- ev
		return
	}
	r.client.deliver(ev)
}

func (r *root) deliverFailures() {
	for {
		select {
		case ev := <-r.failures:
			r.hub.settled()
			until := time.After(leaveTime)
			for _, l := range r.links {
				if l != nil {
					l.flush(until)
				}
			}
			r.client.deliver(ev)
		case <-r.client.done:
			return
		}
	}
}

// errOwnTime is the cause where the time to join is over, and not the caller's context.
var errOwnTime = fmt.Errorf("the time to join is over: %w", context.DeadlineExceeded)

// timeout makes the verdict of a deadline. To the other ranks the context's error goes only
// in text: the ranks at fault are what matters.
func (r *root) timeout(ctx context.Context, after time.Duration) *JoinError {
	r.mu.Lock()
	defer r.mu.Unlock()
	var missing []int
	for rank := 1; rank < r.rv.size; rank++ {
		if r.links[rank] == nil {
			missing = append(missing, rank)
		}
	}
	e := &JoinError{Reason: ReasonMissing, Ranks: missing}
	when := "within " + after.String()
	if cause := context.Cause(ctx); !errors.Is(cause, errOwnTime) {
		e.cause = cause
		if when = "before rank 0 gave up (" + cause.Error() + ")"; !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e.Reason = ReasonGaveUp
		}
	}
	e.Text = fmt.Sprintf("%d of %d ranks arrived %s; missing %s", r.arrived, r.rv.size, when, ranklist.Text(missing))
	if len(r.refused) > 0 {
		var all []string
		for who, times := range r.refused {
			all = append(all, fmt.Sprintf("%s (%d times)", who, times))
		}
		slices.Sort(all)
		refused := strings.Join(all, ", ")
		e.Text += "; refused: " + refused + explained(refused)
	}
	e.Text += fmt.Sprintf("; rank 0 listens at %v on %s", r.ln, hostname())
	if r.rv.addr != "" {
		e.Text += ", the others dial " + r.rv.addr
	}
	return e
}

// explained says of refusals which meaning the words of TLS have here.
func explained(refused string) (text string) {
	if strings.Contains(refused, "bad certificate") {
		text += " (a bad certificate: that process has another secret, or none)"
	}
	if strings.Contains(refused, "does not look like a TLS handshake") {
		text += " (no TLS: that process is no rank)"
	}
	return text
}

func (r *root) decide(e *JoinError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settleLocked(e)
}

// settleLocked comes to the verdict, once, and sends it to all that have arrived:
// nil starts the job. The lock keeps what a rank does afterwards from
// overtaking the start.
func (r *root) settleLocked(e *JoinError) {
	if r.started || r.verdict != nil {
		return
	}
	r.verdict, r.started = e, e == nil
	if r.started {
		r.beginLocked()
	} else {
		for _, l := range slices.Concat(r.links, r.others) {
			if l != nil {
				l.send(encodeFrame(frameRefused, e))
				r.handlers.Go(func() { l.finish(leaveTime) })
			}
		}
	}
	close(r.decided)
}

func (r *root) beginLocked() {
	hosts := make([]string, r.rv.size)
	for rank, h := range r.hellos {
		hosts[rank] = h.hostID
	}
	r.localRank, r.localSize = localPlace(hosts, 0)
	r.localKnown = true
	for rank, l := range r.links {
		if rank == 0 {
			continue
		}
		local, size := localPlace(hosts, rank)
		l.send(encodeFrame(frameStart, &start{r.job, uint32(local), uint32(size)}))
		r.hub.attach(rank, r.hellos[rank].process(), func(ev event) {
			if ev.outcome != nil {
				l.send(ev.outcome.encodedLocked())
			} else {
				l.send(encodeFrame(frameFailure, ev.failure))
			}
		})
	}
}

// handle takes a frame of a rank that has arrived. Everything in it is
// checked; an error closes the connection and is a loss of that rank.
func (r *root) handle(rank int, kind frameType, body []byte) error {
	r.mu.Lock()
	started := r.started
	r.mu.Unlock()
	if kind == frameFailure {
		f, err := decodeFailure(body, r.rv.size)
		if err != nil {
			return err
		}
		if f.rank != rank {
			return fmt.Errorf("it speaks for rank %d", f.rank)
		}
		if !started {
			return errors.New(f.why.Error())
		}
		r.hub.fail(rank, f.why)
		if f.why.kind == causeLeft {
			return errPeerLeft
		}
		return nil
	}
	if !started {
		return fmt.Errorf("frame %d before the job has started", kind)
	}
	switch kind {
	case frameContribute:
		var m contribution
		if err := decode(body, &m); err != nil {
			return err
		}
		r.hub.contribute(rank, m.op, m.seq, m.blob)
	case frameGiveUp:
		var m withdrawal
		if err := decode(body, &m); err != nil {
			return err
		}
		r.hub.giveUp(rank, m.seq, &cause{kind: causeGaveUp, text: m.text})
	default:
		return fmt.Errorf("unexpected frame %d", kind)
	}
	return nil
}

var errPeerLeft = errors.New("the rank has left")

// ended is the end of a rank's connection.
func (r *root) ended(rank int, err error) {
	r.mu.Lock()
	started, process := r.started, r.hellos[rank].process()
	if !started && r.verdict == nil {
		r.settleLocked(&JoinError{Reason: ReasonDied, Ranks: []int{rank},
			Text: fmt.Sprintf("rank %d (%s) went away before all ranks had arrived: %v", rank, process, err)})
	}
	l := r.links[rank]
	r.mu.Unlock()
	if started && !errors.Is(err, errPeerLeft) {
		r.hub.fail(rank, death(err))
	}
	l.cut()
}

// endListening answers late diallers for a grace time, then closes the port
// and all connections that have not sent a hello.
func (r *root) endListening() {
	t := time.NewTimer(r.rv.grace)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.rv.answered:
	case <-r.client.done:
	}
	_ = r.ln.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.raw {
		_ = c.Close()
	}
}

// closeAll ends every connection, at most after leaveTime.
func (r *root) closeAll() {
	r.closing.Do(func() {
		_ = r.ln.Close()
		r.mu.Lock()
		all := slices.Concat(r.links, r.others)
		r.mu.Unlock()
		var wg sync.WaitGroup
		for _, l := range all {
			if l != nil {
				wg.Go(func() { l.finish(leaveTime) })
			}
		}
		wg.Wait()
		r.handlers.Wait()
	})
}

func (r *root) abort(code int, msg string) {
	r.rv.life.ending()
	r.client.close(&cause{kind: causeAbort, code: int32(code), text: msg})
	r.closeAll()
	r.rv.exit(code)
}

func (r *root) close(why *cause) error {
	r.client.close(why)
	r.closeAll()
	return nil
}
