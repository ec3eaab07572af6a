package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// peer is a rank other than 0 of a TCP job.
type peer struct {
	atHub
	link  *link
	where string
	once  sync.Once
	life  life
	list  *endedList // of the peer once it has joined
	exit  func(code int)
}

func joinPeer(ctx context.Context, rv *rendezvous, conf *tls.Config) (backend, error) {
	dialCtx, cancel := context.WithTimeout(ctx, rv.timeout)
	defer cancel()
	conn, err := dialRoot(dialCtx, rv, conf)
	if err != nil {
		return nil, err
	}
	s, err := awaitStart(ctx, rv, conn)
	if err != nil {
		_ = conn.NetConn().Close()
		return nil, err
	}
	p := &peer{
		atHub: atHub{identity{rv.rank, rv.size, s.job, int(s.localRank), int(s.localSize), true},
			newHubClient(rv.rank, rv.size)},
		link:  newLink(conn),
		where: conn.RemoteAddr().String(),
		life:  rv.life,
		list:  rv.ended,
		exit:  rv.exit,
	}
	rv.ended = nil
	p.client.up = p
	p.link.receive(maxFrameToPeer, p.handle, p.ended)
	return p, nil
}

// dialRoot tries until rank 0 has welcomed us, or refused us, or the time is
// over. Rank 0 may start last, and its name may appear in DNS later still.
func dialRoot(ctx context.Context, rv *rendezvous, conf *tls.Config) (*tls.Conn, error) {
	ctx, stop := rv.ended.unlessEnded(ctx, rv.grace)
	defer stop()
	begun := time.Now()
	pause := dialFirst
	var last error
	for {
		conn, err := dialOnce(ctx, rv, conf)
		var verdict *JoinError
		switch {
		case err == nil:
			return conn, nil
		case errors.As(err, &verdict):
			return nil, verdict
		case refusedBy(err):
			return nil, fmt.Errorf("rank %d: %s: %w", rv.rank, rv.where(), err)
		case errors.Is(err, errUntrusted):
			return nil, err
		case !rv.passing(err, time.Since(begun)):
			return nil, fmt.Errorf("rank %d: cannot reach rank 0 at %s: %w%s", rv.rank, rv.where(), err, rv.dialRemedy(err))
		}
		if last == nil || ctx.Err() == nil {
			last = err // the last error that is not just our own time-out
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
			pause = min(2*pause, dialLast)
			continue
		case <-ctx.Done():
			t.Stop()
		}
		if errors.As(context.Cause(ctx), &verdict) {
			return nil, verdict
		}
		return nil, fmt.Errorf("rank %d: no rank 0 at %s within %v: %w (%w)",
			rv.rank, rv.where(), time.Since(begun).Round(time.Millisecond), last, context.Cause(ctx))
	}
}

// errUntrusted marks an address that we may not talk to without a secret.
var errUntrusted = errors.New("address needs a secret")

// dialOnce has 2 handshake times up to its hello. After that rank 0 may have admitted this rank,
// and would take another dial for a second process.
func dialOnce(ctx context.Context, rv *rendezvous, conf *tls.Config) (*tls.Conn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, 2*rv.handshake)
	defer cancel()
	raw, err := rv.dial(dialCtx)
	if err != nil {
		return nil, err
	}
	tune(raw)
	conn, err := clientHandshake(dialCtx, raw, conf)
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		err = fmt.Errorf("it is connected and says nothing, as long as it has not called Join, or where it is stopped: %w",
			err)
	}
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if m := rv.munge; m != nil {
		if err = m.send(dialCtx, conn, roleRank, rv.rank); err == nil {
			_, err = m.receive(dialCtx, conn, roleRoot)
		}
		if err != nil {
			raw.Close()
			return nil, err
		}
	}
	me := hello{
		protocol: rv.protocol, rank: uint32(rv.rank), pid: uint32(os.Getpid()), host: hostname(),
		size: uint32(rv.size), job: rv.job, hostID: hostID(),
	}
	if _, err = conn.Write(encodeFrame(frameHello, &me)); err == nil {
		err = awaitWelcome(conn)
	}
	if err != nil || !stop() {
		raw.Close()
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return conn, nil
}

// refusedWith is the verdict in a frame, or an error where that is damaged.
func refusedWith(body []byte) error {
	verdict := &JoinError{}
	if err := decode(body, verdict); err != nil {
		return err
	}
	return verdict
}

func awaitWelcome(conn *tls.Conn) error {
	kind, body, err := readFrame(conn, maxHello)
	switch {
	case err != nil:
		return fmt.Errorf("no welcome: %w", err)
	case kind == frameWelcome:
		return nil
	case kind == frameRefused:
		return refusedWith(body)
	}
	return fmt.Errorf("frame %d instead of a welcome", kind)
}

// awaitStart waits for rank 0's verdict. Rank 0 owns the time-out, for it may
// have started later than we: our own clock only guards against a rank 0 that
// hangs.
func awaitStart(ctx context.Context, rv *rendezvous, conn *tls.Conn) (start, error) {
	guard := 2*rv.timeout + rv.grace
	ctx, cancel := context.WithTimeoutCause(ctx, guard, fmt.Errorf("rank 0 came to no verdict within %v", guard))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	kind, body, err := readFrame(conn, maxHello)
	if !stop() {
		why := context.Cause(ctx)
		last := &failure{rv.rank, "", &cause{kind: causeGaveUp, text: "gave up joining: " + why.Error()}}
		_ = conn.SetWriteDeadline(time.Now().Add(leaveTime))
		_, _ = conn.Write(encodeFrame(frameFailure, last))
		return start{}, fmt.Errorf("rank %d: rank 0 at %s still waits for other ranks: %w", rv.rank, rv.where(), why)
	}
	switch {
	case err != nil:
		return start{}, &LostError{Rank: 0, Who: rv.where(), Cause: death(fmt.Errorf("before the job had started: %w", err))}
	case kind == frameStart:
		var s start
		err := decode(body, &s)
		return s, err
	case kind == frameRefused:
		return start{}, refusedWith(body)
	}
	return start{}, fmt.Errorf("rank 0 sent frame %d instead of its verdict", kind)
}

func (p *peer) handle(kind frameType, body []byte) error {
	switch kind {
	case frameOutcome:
		o, err := decodeOutcome(body, p.size)
		if err != nil {
			return err
		}
		p.client.deliver(event{outcome: o})
	case frameFailure:
		f, err := decodeFailure(body, p.size)
		if err != nil {
			return err
		}
		p.client.deliver(event{failure: f})
		if f.rank == 0 && f.why.kind == causeLeft {
			return errRootLeft
		}
	default:
		return fmt.Errorf("unexpected frame %d", kind)
	}
	return nil
}

var errRootLeft = errors.New("rank 0 has left")

// ended is the end of the connection: rank 0's death, unless it left. Once it is lost the launcher
// alone reports other deaths, be they together with rank 0's or later. If all is in order,
// ranks end without being lost.
func (p *peer) ended(err error) {
	if !errors.Is(err, errRootLeft) {
		p.client.deliver(event{failure: &failure{0, "at " + p.where, death(err)}})
	}
	p.link.cut()
	if p.client.hasLost(0) {
		go p.list.follow(p.client.done, func(rank int, how string) {
			if rank < p.size {
				p.client.deliver(event{failure: &failure{rank, "", &cause{kind: causeDeath, text: "the process ended: " + how}}})
			}
		})
	}
}

func (p *peer) contribute(o op, seq uint32, blob []byte) {
	p.link.send(encodeFrame(frameContribute, &contribution{o, seq, blob}))
}
func (p *peer) giveUp(seq uint32, why *cause) {
	p.link.send(encodeFrame(frameGiveUp, &withdrawal{seq, why.text}))
}
func (p *peer) fail(why *cause) { p.link.send(encodeFrame(frameFailure, &failure{p.rank, "", why})) }

func (p *peer) abort(code int, msg string) {
	p.life.ending()
	p.client.close(&cause{kind: causeAbort, code: int32(code), text: msg})
	p.link.finish(leaveTime)
	p.exit(code)
}

func (p *peer) close(why *cause) error {
	p.client.close(why)
	p.once.Do(func() {
		p.link.finish(leaveTime)
		p.list.close()
	})
	return nil
}
