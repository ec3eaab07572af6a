package bootstrap

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// link is one authenticated connection after the handshake: a goroutine
// that reads and one that writes, so that no sender ever waits for a peer.
type link struct {
	conn *tls.Conn

	mu      sync.Mutex
	out     []outgoing
	closing bool
	wake    chan struct{} // capacity 1
	written chan struct{} // the writer has ended
	read    chan struct{} // the reader has ended
	quit    chan struct{} // the connection is to go now
	once    sync.Once
}

// outgoing is a frame, or a mark that is closed when all before it is written.
type outgoing struct {
	frame []byte
	mark  chan struct{}
}

// newLink starts the writer. The deadlines of the handshake are over: from
// here on only the job's timeouts, and the kernel's, end the connection.
func newLink(conn *tls.Conn) *link {
	_ = conn.SetDeadline(time.Time{})
	l := &link{
		conn: conn, wake: make(chan struct{}, 1), written: make(chan struct{}),
		read: make(chan struct{}), quit: make(chan struct{}),
	}
	go l.write()
	return l
}

// receive starts the reader: each frame goes to handle, the end to ended.
func (l *link) receive(limit int, handle func(frameType, []byte) error, ended func(error)) {
	go func() {
		defer close(l.read)
		for {
			t, body, err := readFrame(l.conn, limit)
			if err == nil {
				err = handle(t, body)
			}
			if err != nil {
				ended(err)
				return
			}
		}
	}()
}

// send queues a frame. The queue is bounded by the protocol: an outcome for
// each collective, a failure for each rank.
func (l *link) send(frame []byte) { l.queue(outgoing{frame: frame}) }

func (l *link) queue(o outgoing) {
	l.mu.Lock()
	if !l.closing {
		l.out = append(l.out, o)
	}
	l.mu.Unlock()
	l.stir()
}

// flush waits until queued frames are with the kernel, the writer has ended,
// or the time is over.
func (l *link) flush(until <-chan time.Time) {
	mark := make(chan struct{})
	l.queue(outgoing{mark: mark})
	select {
	case <-mark:
	case <-l.written:
	case <-until:
	}
}

func (l *link) stir() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) write() {
	defer close(l.written)
	for {
		l.mu.Lock()
		out, closing := l.out, l.closing
		l.out = nil
		l.mu.Unlock()
		for _, o := range out {
			if o.mark != nil {
				close(o.mark)
			} else if _, err := l.conn.Write(o.frame); err != nil {
				return // the reader sees the same end and reports it
			}
		}
		if len(out) > 0 {
			continue
		}
		if closing {
			_ = l.conn.CloseWrite()
			return
		}
		select {
		case <-l.wake:
		case <-l.quit:
			return
		}
	}
}

// finish sends queued frames, says that nothing follows, and waits, at most
// for the given time, until the other side has closed. Closing earlier could
// reset the connection and destroy frames still in flight.
func (l *link) finish(atMost time.Duration) {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.stir()
	t := time.NewTimer(atMost)
	defer t.Stop()
	for _, ended := range []chan struct{}{l.written, l.read} {
		select {
		case <-ended:
		case <-t.C:
			l.cut()
			<-l.written
			<-l.read
			return
		}
	}
	l.cut()
}

// cut closes the connection at once.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.quit)
		_ = l.conn.NetConn().Close()
	})
}

// tune lets the kernel notice the death of a whole host, by its silence: within about 25 s, for an
// idle connection as for one with bytes in flight.
func tune(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second,
			Interval: 5 * time.Second, Count: 3})
		_ = t.SetNoDelay(true)
		userTimeout(t, 25_000)
	}
}
