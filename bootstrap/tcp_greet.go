package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// accept serves diallers until the listener closes. Only the verdict owns the
// deadline: a connection of a rank that has arrived carries none, or healthy
// ranks would be named as the cause for late ones.
func (r *root) accept(ln net.Listener) {
	slots := make(chan struct{}, handshakesMax)
	var full time.Time // since when there are no descriptors for another connection
	for {
		slots <- struct{}{}
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			switch {
			case !errors.Is(err, syscall.EMFILE) || r.greets():
				full = time.Time{}
			case full.IsZero():
				full = time.Now()
			case time.Since(full) > fullTime:
				r.outOfFiles()
			}
			time.Sleep(dialFirst) // out of descriptors, or aborted by the dialler
			<-slots
			continue
		}
		full = time.Time{}
		r.mu.Lock()
		r.raw[c] = true
		r.mu.Unlock()
		r.handlers.Go(func() {
			defer func() { <-slots }()
			r.admit(c)
		})
	}
}

// fullTime is how long rank 0 may lack descriptors while no dialler is on its way to give one back.
const fullTime = time.Second

// greets: a dialler may be refused yet, which frees its descriptor.
func (r *root) greets() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.raw) > 0
}

// outOfFiles decides: those that arrived keep their connections, and the others are not missing.
func (r *root) outOfFiles() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settleLocked(&JoinError{Reason: ReasonLimit, Ranks: []int{0},
		Text: fmt.Sprintf("rank 0 (%s) lets no more ranks in than %d of %d: %v; "+
			"it takes a descriptor for each rank: raise ulimit -n there", thisProcess(), r.arrived, r.rv.size, syscall.EMFILE)})
}

// admit authenticates one dialler and reads its hello. A stranger never ends
// the job: it is counted, and named when a rank is missing.
func (r *root) admit(c net.Conn) {
	tune(c)
	_ = c.SetDeadline(time.Now().Add(r.rv.handshake))
	t := tls.Server(c, r.conf)
	h, err := r.greet(t)
	r.mu.Lock()
	delete(r.raw, c)
	r.mu.Unlock()
	if err != nil {
		r.refuse(c, err)
		_ = c.Close()
		return
	}
	r.admitOrRefuse(h, t)
}

// greet has both sides prove by munge what they are, where that is the way, and reads the hello.
func (r *root) greet(t *tls.Conn) (hello, error) {
	m := r.rv.munge
	if m == nil {
		return readHello(t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.rv.handshake)
	defer cancel()
	if err := t.Handshake(); err != nil {
		return hello{}, err
	}
	rank, err := m.receive(ctx, t, roleRank)
	if err == nil {
		err = m.send(ctx, t, roleRoot, 0)
	}
	if err != nil {
		return hello{}, err
	}
	h, err := readHello(t)
	if err == nil && int(h.rank) != rank {
		err = fmt.Errorf("%w: the hello is of rank %d, its munge credential of rank %d", errNotProven, h.rank, rank)
	}
	return h, err
}

func readHello(t *tls.Conn) (hello, error) {
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
	var h hello
	err = decode(body, &h)
	return h, err
}

func (r *root) refuse(c net.Conn, err error) {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	why := err.Error()
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "read" {
		why = op.Err.Error() // without the port, which differs every time
	}
	if host == "" {
		host = "this host" // over the unix socket
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

// admitOrRefuse gives an authenticated rank its place, or sends it the verdict.
// A rank that does not fit is a mistake of the user's, which more waiting does
// not mend: it decides for all.
func (r *root) admitOrRefuse(h hello, t *tls.Conn) {
	l := newLink(t)
	rank := int(h.rank)
	r.mu.Lock()
	defer r.mu.Unlock()
	problem := r.problemLocked(h)
	if problem != nil {
		r.others = append(r.others, l)
		l.receive(maxHello, func(frameType, []byte) error { return nil }, func(error) {})
		if !r.started && r.verdict == nil {
			r.settleLocked(problem)
			return
		}
		l.send(encodeFrame(frameRefused, problem))
		r.handlers.Go(func() { l.finish(leaveTime) })
		return
	}
	r.links[rank], r.hellos[rank] = l, h
	l.send(finish(newFrame(frameWelcome, 0)))
	l.receive(maxFrameToRoot,
		func(kind frameType, body []byte) error { return r.handle(rank, kind, body) },
		func(err error) { r.ended(rank, err) })
	if r.arrived++; r.arrived == r.rv.size {
		r.settleLocked(nil)
	}
}

func (r *root) problemLocked(h hello) *JoinError {
	rank := int(h.rank)
	fault := func(reason Reason, format string, args ...any) *JoinError {
		return &JoinError{Reason: reason, Ranks: []int{rank}, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.verdict != nil:
		return r.verdict
	case h.protocol != r.rv.protocol:
		return fault(ReasonProtocol, "rank %d on %s speaks protocol %d, rank 0 speaks %d: mixed binaries",
			rank, h.host, h.protocol, r.rv.protocol)
	case h.job != r.rv.job && h.job != "":
		return fault(ReasonForeign, "rank %d on %s belongs to job %q, this is job %q", rank, h.host, h.job, r.rv.job)
	case int(h.size) != r.rv.size:
		return fault(ReasonShape, "rank %d on %s was started for %d ranks, rank 0 for %d", rank, h.host, h.size, r.rv.size)
	case rank >= r.rv.size:
		return fault(ReasonShape, "rank %d on %s is outside the job of %d ranks", rank, h.host, r.rv.size)
	case rank == 0:
		return fault(ReasonDuplicate, "duplicate rank 0: %s and %s", thisProcess(), h.process())
	case r.started:
		return fault(ReasonStarted, "the job has started; rank %d is %s, not %s", rank, r.hellos[rank].process(), h.process())
	case r.links[rank] != nil:
		return fault(ReasonDuplicate, "duplicate rank %d: %s and %s", rank, r.hellos[rank].process(), h.process())
	}
	return nil
}
