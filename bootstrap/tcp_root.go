package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// root is rank 0 of a TCP job: it listens, gathers the hellos of the others,
// comes to a verdict, and from then on runs the hub.
type root struct {
	*member // rank 0's own place at the hub
	rv      *rendezvous
	conf    *tls.Config
	ln      net.Listener
	hub     *hub

	mu       sync.Mutex
	raw      map[net.Conn]bool // connections that are not links yet
	links    []*link           // by rank; of the accepted
	others   []*link           // of the refused, until they have read why
	hellos   []hello
	arrived  int
	refused  map[string]int
	started  bool
	verdict  *JoinError // why not, once decided
	decided  chan struct{}
	handlers sync.WaitGroup
	bad      chan event // failures on their way to rank 0 itself
	closing  sync.Once
}

func listenRemedy(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return " (another job, or an earlier rank 0 that has not ended; choose another port)"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return " (rank 0 must run on the host that the address names; this is " + hostname() + ")"
	}
	return ""
}

func joinRoot(ctx context.Context, rv *rendezvous, conf *tls.Config) (backend, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rv.timeout, errOwnTime)
	defer cancel()
	ln, err := rv.listen(ctx)
	if err != nil {
		return nil, err
	}
	if rv.secret == nil {
		rv.log.Warn(fmt.Sprintf("bootstrap: no secret: whoever reaches %v can join this job", ln.Addr()))
	}
	r := &root{
		rv: rv, conf: conf, ln: ln, hub: newHub(rv.size), raw: map[net.Conn]bool{},
		links: make([]*link, rv.size), hellos: make([]hello, rv.size), arrived: 1,
		refused: map[string]int{}, decided: make(chan struct{}),
		bad: make(chan event, 2*rv.size), // a rank falls silent at most once, and ends once
	}
	r.hellos[0] = hello{rank: 0, host: hostname(), hostID: hostID()}
	job := rv.job
	if job == "" {
		job = "tcp-" + randomID()
	}
	r.member = newMember(r.hub, 0, identity{rank: 0, size: rv.size, job: job})
	r.hub.attach(0, whoami(), r.hearOwn)
	r.handlers.Add(1)
	go r.accept()
	go func() {
		if e := rv.ended.await(ctx, r.here); e != nil {
			r.decide(e)
		}
	}()

	select {
	case <-r.decided:
	case <-ctx.Done():
		r.decide(r.timeout(ctx, rv.timeout))
	}
	if r.started {
		r.handlers.Go(r.endListening)
		r.handlers.Go(r.hearBad)
		return r, nil
	}
	r.endListening()
	r.shut()
	return nil, r.verdict
}

// here: of the end of such a rank its connection tells.
func (r *root) here(rank int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rank < len(r.links) && r.links[rank] != nil
}

// hearOwn takes the hub's events for rank 0. Bad news waits until it is on its
// way to all others: the program may exit at once on hearing it, and they
// would blame rank 0 for what another rank did.
func (r *root) hearOwn(ev event) {
	if ev.failure != nil {
		r.bad <- ev
		return
	}
	r.seat.deliver(ev)
}

func (r *root) hearBad() {
	for {
		select {
		case ev := <-r.bad:
			r.hub.settled()
			until := time.After(goodbyeTime)
			for _, l := range r.links {
				if l != nil {
					l.flush(until)
				}
			}
			r.seat.deliver(ev)
		case <-r.seat.done:
			return
		}
	}
}

// errOwnTime is the cause where the time to join is over, and not the caller's context.
var errOwnTime = fmt.Errorf("the time to join is over: %w", context.DeadlineExceeded)

// timeout words the verdict of a deadline. To the other ranks the context's error goes only
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
	e.Text = fmt.Sprintf("%d of %d ranks arrived %s; missing %s", r.arrived, r.rv.size, when, rankList(missing))
	if len(r.refused) > 0 {
		e.Text += "; refused: " + strings.Join(slices.Sorted(maps.Keys(counted(r.refused))), ", ")
	}
	return e
}

func counted(refused map[string]int) map[string]bool {
	m := map[string]bool{}
	for k, n := range refused {
		m[fmt.Sprintf("%s (%d times)", k, n)] = true
	}
	return m
}

// accept serves diallers until the listener closes. Only the verdict owns the
// deadline: a connection of a rank that has arrived carries none, or healthy
// ranks would be blamed for those that are late.
func (r *root) accept() {
	defer r.handlers.Done()
	slots := make(chan struct{}, handshakesMax)
	for {
		slots <- struct{}{}
		c, err := r.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(dialFirst) // out of descriptors, or aborted by the dialler
			<-slots
			continue
		}
		r.mu.Lock()
		r.raw[c] = true
		r.mu.Unlock()
		r.handlers.Go(func() {
			defer func() { <-slots }()
			r.greet(c)
		})
	}
}

// greet authenticates one dialler and hears its hello. A stranger never ends
// the job: it is counted, and named when a rank is missing.
func (r *root) greet(c net.Conn) {
	tune(c)
	_ = c.SetDeadline(time.Now().Add(r.rv.handshake))
	t := tls.Server(c, r.conf)
	h, err := r.hear(t)
	r.mu.Lock()
	delete(r.raw, c)
	r.mu.Unlock()
	if err != nil {
		r.refuse(c, err)
		_ = c.Close()
		return
	}
	r.seatOrRefuse(h, t)
}

func (r *root) hear(t *tls.Conn) (hello, error) {
	if err := t.Handshake(); err != nil {
		return hello{}, err
	}
	kind, body, err := readFrame(t, maxHello)
	if err != nil {
		return hello{}, fmt.Errorf("no hello: %w", err)
	}
	if kind != frameHello {
		return hello{}, fmt.Errorf("frame %d instead of a hello", kind)
	}
	return decodeHello(body)
}

func (r *root) refuse(c net.Conn, err error) {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	why := err.Error()
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "read" {
		why = op.Err.Error() // without the port, which differs every time
	}
	key := host + ": " + why
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) >= refusedMax && r.refused[key] == 0 {
		key = "others"
	}
	r.refused[key]++
	r.rv.log.Debug("bootstrap: refused " + key)
}

// seatOrRefuse gives an authenticated rank its place, or tells it the verdict.
// One of ours that does not fit is a mistake of the user's which more waiting
// does not mend: it decides for all.
func (r *root) seatOrRefuse(h hello, t *tls.Conn) {
	l := newLink(t)
	rank := int(h.rank)
	r.mu.Lock()
	defer r.mu.Unlock()
	problem := r.problem(h)
	if problem != nil {
		r.others = append(r.others, l)
		l.receive(maxHello, func(frameType, []byte) error { return nil }, func(error) {})
		if !r.started && r.verdict == nil {
			r.settle(problem)
			return
		}
		l.send(problem.encode())
		r.handlers.Go(func() { l.finish(goodbyeTime) })
		return
	}
	r.links[rank], r.hellos[rank] = l, h
	l.send(finish(newFrame(frameWelcome, 0)))
	l.receive(maxFrameToRoot,
		func(kind frameType, body []byte) error { return r.handle(rank, kind, body) },
		func(err error) { r.ended(rank, err) })
	if r.arrived++; r.arrived == r.rv.size {
		r.settle(nil)
	}
}

func (r *root) problem(h hello) *JoinError {
	rank := int(h.rank)
	fault := func(reason Reason, format string, args ...any) *JoinError {
		return &JoinError{Reason: reason, Ranks: []int{rank}, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.verdict != nil:
		return r.verdict
	case h.protocol != r.rv.protocol:
		return fault(ReasonProtocol, "rank %d on %s speaks protocol %d, rank 0 speaks %d: mixed binaries", rank, h.host, h.protocol, r.rv.protocol)
	case h.job != r.rv.job && h.job != "":
		return fault(ReasonForeign, "rank %d on %s belongs to job %q, this is job %q", rank, h.host, h.job, r.rv.job)
	case int(h.size) != r.rv.size:
		return fault(ReasonShape, "rank %d on %s was started for %d ranks, rank 0 for %d", rank, h.host, h.size, r.rv.size)
	case rank >= r.rv.size:
		return fault(ReasonShape, "rank %d on %s is outside the job of %d ranks", rank, h.host, r.rv.size)
	case rank == 0:
		return fault(ReasonDuplicate, "duplicate rank 0: %s and %s", whoami(), h.who())
	case r.started:
		return fault(ReasonStarted, "the job has started; rank %d is %s, not %s", rank, r.hellos[rank].who(), h.who())
	case r.links[rank] != nil:
		return fault(ReasonDuplicate, "duplicate rank %d: %s and %s", rank, r.hellos[rank].who(), h.who())
	}
	return nil
}

func (r *root) decide(e *JoinError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settle(e)
}

// settle comes to the verdict, once, and tells it to all who have arrived:
// nil starts the job. The caller holds mu, so that nothing that a rank does
// afterwards can overtake the start.
func (r *root) settle(e *JoinError) {
	if r.started || r.verdict != nil {
		return
	}
	r.verdict, r.started = e, e == nil
	if r.started {
		r.begin()
	} else {
		for _, l := range slices.Concat(r.links, r.others) {
			if l != nil {
				l.send(e.encode())
				r.handlers.Go(func() { l.finish(goodbyeTime) })
			}
		}
	}
	close(r.decided)
}

func (r *root) begin() {
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
		l.send(start{r.job, uint32(local), uint32(size)}.encode())
		r.hub.attach(rank, r.hellos[rank].who(), func(ev event) {
			if ev.outcome != nil {
				l.send(ev.outcome.encoded())
			} else {
				l.send(ev.failure.encode())
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
		o, seq, blob, err := decodeContribute(body)
		if err != nil {
			return err
		}
		r.hub.contribute(rank, o, seq, blob)
	case frameGiveUp:
		seq, text, err := decodeGiveUp(body)
		if err != nil {
			return err
		}
		r.hub.giveUp(rank, seq, &cause{kind: causeGaveUp, text: text})
	default:
		return fmt.Errorf("unexpected frame %d", kind)
	}
	return nil
}

var errPeerLeft = errors.New("the rank has left")

// ended is the end of a rank's connection.
func (r *root) ended(rank int, err error) {
	r.mu.Lock()
	started, who := r.started, r.hellos[rank].who()
	if !started && r.verdict == nil {
		r.settle(&JoinError{Reason: ReasonDied, Ranks: []int{rank},
			Text: fmt.Sprintf("rank %d (%s) went away before all ranks had arrived: %v", rank, who, err)})
	}
	l := r.links[rank]
	r.mu.Unlock()
	if started && !errors.Is(err, errPeerLeft) {
		r.hub.fail(rank, death(err))
	}
	l.cut()
}

// endListening answers late diallers for a grace time, then closes the port
// and all connections that have not said who they are.
func (r *root) endListening() {
	t := time.NewTimer(r.rv.grace)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.rv.answered:
	case <-r.seat.done:
	}
	_ = r.ln.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.raw {
		_ = c.Close()
	}
}

// shut ends every connection, at most after the goodbye time.
func (r *root) shut() {
	r.closing.Do(func() {
		_ = r.ln.Close()
		r.mu.Lock()
		all := slices.Concat(r.links, r.others)
		r.mu.Unlock()
		var wg sync.WaitGroup
		for _, l := range all {
			if l != nil {
				wg.Go(func() { l.finish(goodbyeTime) })
			}
		}
		wg.Wait()
		r.handlers.Wait()
	})
}

func (r *root) abort(code int, msg string) {
	r.rv.life.ending()
	r.seat.close(&cause{kind: causeAbort, code: int32(code), text: msg})
	r.shut()
	r.rv.exit(code)
}

func (r *root) close(why *cause) error {
	r.seat.close(why)
	r.shut()
	return nil
}
