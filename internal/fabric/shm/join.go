package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/segment"
)

const (
	joinTimeout     = 2 * time.Minute // when the context has no deadline
	greetingTimeout = 10 * time.Second
	dialsAtATime    = 16
	acceptsAtATime  = 128 // connections that have not greeted yet
	dialRetry       = time.Millisecond

	greetingVersion = 1
	greetingLen     = 48
	kindHello       = 1
	kindWelcome     = 2
	kindLeave       = 3
)

// joiner is one rank's view of the joining of all pairs.
type joiner struct {
	n     *Network
	ctx   context.Context
	abort context.CancelCauseFunc
	known []*addr

	mu      sync.Mutex
	missing int // higher ranks that have not come yet
}

// join connects this rank to every other that is known, and closes the listener.
func (n *Network) join(ctx context.Context, known []*addr) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, joinTimeout)
		defer cancel()
	}
	p := &joiner{n: n, known: known}
	p.ctx, p.abort = context.WithCancelCause(ctx)
	defer p.abort(nil)
	for r := n.cfg.Rank + 1; r < n.cfg.Size; r++ {
		if known[r] != nil {
			p.missing++
		}
	}
	// Accept ends when the listener closes: with the last rank or the context.
	stop := context.AfterFunc(p.ctx, func() { n.listener.Close() })
	defer stop()
	if p.missing == 0 {
		n.listener.Close()
	}
	var wg sync.WaitGroup
	wg.Go(p.acceptAll)
	wg.Go(p.dialAll)
	wg.Wait()
	if p.ctx.Err() != nil {
		return p.failure()
	}
	return nil
}

// failure is why not all joined, with the missing ranks.
func (p *joiner) failure() error {
	cause := context.Cause(p.ctx)
	if !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	var absent []int
	for r, a := range p.known {
		if a != nil && r != p.n.cfg.Rank && p.n.peers[r].conn == nil {
			absent = append(absent, r)
		}
	}
	return fmt.Errorf("shm: ranks %v did not join rank %d in time; see whether they still run and what they logged: %w",
		absent, p.n.cfg.Rank, cause)
}

// dialAll connects to the lower ranks, a bounded number at a time.
func (p *joiner) dialAll() {
	var wg sync.WaitGroup
	slots := make(chan struct{}, dialsAtATime)
	for r := range p.n.cfg.Rank {
		if p.known[r] == nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := p.dial(r); err != nil {
				p.abort(fmt.Errorf("shm: rank %d joins rank %d: %w", p.n.cfg.Rank, r, err))
			}
		})
	}
	wg.Wait()
}

// dial connects to one lower rank, which may not have come to Connect yet.
func (p *joiner) dial(rank int) error {
	c, err := p.connect(p.known[rank].socket())
	if err != nil {
		return err
	}
	release := context.AfterFunc(p.ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer release()
	m, err := p.introduce(c, rank)
	if err != nil {
		c.Close()
		if ctxErr := p.ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		return err
	}
	p.admit(rank, c, m)
	return nil
}

// connect dials until the listener has room for us.
func (p *joiner) connect(name string) (*net.UnixConn, error) {
	var d net.Dialer
	for {
		c, err := d.DialContext(p.ctx, "unixpacket", name)
		switch {
		case err == nil:
			return c.(*net.UnixConn), nil
		case errors.Is(err, syscall.ECONNREFUSED):
			return nil, fmt.Errorf("it has ended, or given up joining; see what it logged: %w", err)
		case !errors.Is(err, syscall.EAGAIN): // EAGAIN is a full backlog (connect(2))
			return nil, err
		}
		select {
		case <-p.ctx.Done():
			return nil, p.ctx.Err()
		case <-time.After(dialRetry):
		}
	}
}

// introduce exchanges greetings and segments with the rank that was dialled.
func (p *joiner) introduce(c *net.UnixConn, rank int) (*segment.Mapping, error) {
	if err := p.n.sameUser(c); err != nil {
		return nil, err
	}
	if err := p.send(c, kindHello, rank); err != nil {
		return nil, err
	}
	from, fd, err := p.receive(c, kindWelcome)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if from != rank {
		return nil, fmt.Errorf("rank %d answered in its place", from)
	}
	return segment.MapFD(fd, 0)
}

// acceptAll waits for the higher ranks. Any other connection is closed.
func (p *joiner) acceptAll() {
	var incoming sync.WaitGroup
	defer incoming.Wait()
	slots := make(chan struct{}, acceptsAtATime)
	for {
		c, err := p.n.listener.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.abort(fmt.Errorf("shm: accepting peers: %w; raise the limit of open files (ulimit -n) if there are many ranks",
					err))
			}
			return
		}
		slots <- struct{}{}
		incoming.Go(func() {
			defer func() { <-slots }()
			p.accept(c)
		})
	}
}

// accept admits a higher rank. A process that is none is no error: its connection is closed
// without a word.
func (p *joiner) accept(c *net.UnixConn) {
	release := context.AfterFunc(p.ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer release()
	c.SetReadDeadline(time.Now().Add(greetingTimeout))
	if p.n.sameUser(c) != nil {
		c.Close()
		return
	}
	rank, fd, err := p.receive(c, kindHello)
	if rank <= p.n.cfg.Rank {
		c.Close()
		return
	}
	// From here on the rank has proved its identity, so errors are the rank's.
	var m *segment.Mapping
	if err == nil {
		m, err = p.welcome(c, rank, fd)
	}
	if err != nil {
		c.Close()
		p.abort(fmt.Errorf("shm: rank %d admits rank %d: %w", p.n.cfg.Rank, rank, err))
		return
	}
	if !p.admit(rank, c, m) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missing--; p.missing == 0 {
		p.n.listener.Close()
	}
}

// welcome maps the rank's segment and hands it this rank's.
func (p *joiner) welcome(c *net.UnixConn, rank, fd int) (*segment.Mapping, error) {
	defer unix.Close(fd)
	m, err := segment.MapFD(fd, 0)
	if err != nil {
		return nil, err
	}
	if err := p.send(c, kindWelcome, rank); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// admit records a joined pair; a second connection of the same rank is dropped.
func (p *joiner) admit(rank int, c *net.UnixConn, m *segment.Mapping) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := &p.n.peers[rank]
	if peer.conn != nil {
		m.Close()
		c.Close()
		return false
	}
	peer.conn, peer.mapping = c, m
	return true
}

// sameUser checks the user at the other end, as the kernel has it.
func (n *Network) sameUser(c *net.UnixConn) error {
	uid, err := peerUser(c)
	if err != nil {
		return fmt.Errorf("credentials of the peer: %w", err)
	}
	if uid != n.self.place.uid {
		return fmt.Errorf("user %d is at the other end, want %d: %w", uid, n.self.place.uid, os.ErrPermission)
	}
	return nil
}

// send greets a rank and hands it this rank's segment.
func (p *joiner) send(c *net.UnixConn, kind byte, to int) error {
	if _, _, err := c.WriteMsgUnix(p.greeting(kind, to), unix.UnixRights(p.n.cfg.Segment.FD()), nil); err != nil {
		return fmt.Errorf("sending the segment: %w", err)
	}
	return nil
}

// greeting is the packet that doc.go describes.
func (p *joiner) greeting(kind byte, to int) []byte {
	b := make([]byte, 0, greetingLen)
	b = append(b, "ibcH"...)
	b = append(b, greetingVersion, kind, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, p.n.self.rank)
	b = binary.LittleEndian.AppendUint32(b, uint32(to))
	b = append(b, p.known[to].cookie[:]...)
	return append(b, p.n.self.cookie[:]...)
}

// receive reads a greeting of the given kind. The descriptor is the caller's.
// from is -1 unless the sender has proved its identity, whatever else is wrong.
func (p *joiner) receive(c *net.UnixConn, kind byte) (from, fd int, err error) {
	b := make([]byte, greetingLen+1)
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob) // descriptors arrive close-on-exec
	if err != nil {
		return -1, -1, fmt.Errorf("waiting for its greeting: %w", err)
	}
	fds := descriptors(oob[:oobn])
	from, err = p.checkGreeting(b[:n], kind)
	if err == nil && (len(fds) != 1 || flags&unix.MSG_CTRUNC != 0) {
		err = fmt.Errorf("its greeting brought %d descriptors, want 1; raise the limit of open files (ulimit -n)", len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return from, -1, err
	}
	return from, fds[0], nil
}

// checkGreeting returns the sender of a greeting, if the cookies prove it, else -1.
func (p *joiner) checkGreeting(b []byte, kind byte) (from int, err error) {
	if len(b) != greetingLen || string(b[:4]) != "ibcH" || b[4] != greetingVersion || b[5] != kind || b[6]|b[7] != 0 {
		return -1, fmt.Errorf("malformed greeting of %d bytes", len(b))
	}
	sender, to := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	if to != p.n.self.rank || uint64(sender) >= uint64(len(p.known)) || p.known[sender] == nil || sender == to {
		return -1, fmt.Errorf("greeting from rank %d to rank %d", sender, to)
	}
	if !id(b[16:32]).equal(p.n.self.cookie) || !id(b[32:48]).equal(p.known[sender].cookie) {
		return -1, fmt.Errorf("greeting with a wrong cookie: %w", os.ErrPermission)
	}
	return int(sender), nil
}
