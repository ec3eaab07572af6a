package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

// kind of a frame. A frame is kind u8, id u32, length u32, all little-endian, and a body of that
// length.
type kind uint8

const (
	kindSpec    kind = iota + 1 // to the agent: what to start, gob
	kindSignal                  // to the agent: id is the rank, body the signal u8
	kindEnded                   // id is the rank; to the agent: how, text; from it: code u8, how
	kindPause                   // to the agent: nothing will be heard until resume
	kindResume                  //
	kindBye                     // to the agent: the job is over
	kindStarted                 // id is the rank; body pid u32
	kindRunning                 // all ranks of the agent have been started
	kindFailed                  // not all: exit code u8, text
	kindDying                   // id is the rank, which begins to end
	kindReport                  // text for the user
	kindOpen                    // id is a new stream
	kindData                    // of a stream
	kindTaken                   // u32: so many bytes of a stream have been taken
	kindEnd                     // of a stream, in one direction
	kindPing
)

const (
	frameHead  = 9
	frameMost  = 16 << 20  // bytes of a body; environment and arguments of a program are less
	streamPart = 32 << 10  // bytes of a stream in one frame
	window     = 256 << 10 // bytes of a stream that have not been taken
)

type frame struct {
	kind kind
	id   uint32
	body []byte
}

// text is what comes behind some bytes, fit for a line of a terminal.
func (f frame) text(from int) string { return printable(f.body[min(from, len(f.body)):]) }

func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, string(b))
}

func (f frame) number() (n int) {
	if len(f.body) >= 4 {
		n = int(binary.LittleEndian.Uint32(f.body))
	}
	return n
}

func (f frame) first() (n int) {
	if len(f.body) > 0 {
		n = int(f.body[0])
	}
	return n
}

func readFrame(r io.Reader) (frame, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: kind(head[0]), id: binary.LittleEndian.Uint32(head[1:])}
	n := binary.LittleEndian.Uint32(head[5:])
	if n > frameMost {
		return frame{}, fmt.Errorf("a frame of %d bytes", n)
	}
	f.body = make([]byte, n)
	_, err := io.ReadFull(r, f.body)
	return f, err
}

var (
	errSilent = errors.New("nothing was heard of it any more")
	errClosed = errors.New("the channel is closed")
)

// channel is between this process and an agent, over the standard input and output of ssh: frames,
// and streams of bytes, each with a window of its own, so that one without a reader holds up no
// other. Frames arrive in the order of sending.
type channel struct {
	w       io.Writer
	silence time.Duration
	handle  func(f frame) // one at a time; it does not block
	opened  func(c *conn) // of a stream that the other side opened; it does not block
	ending  func()        // called before the streams learn of the channel's end; may be nil
	done    chan struct{} // closed with the channel
	wake    chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []byte
	idle   *sync.Cond // the queue has been written
	busy   bool       // the writer has a part of it
	conns  map[uint32]*conn
	heard  time.Time
	paused bool
	err    error
}

func newChannel(w io.Writer, silence time.Duration) *channel {
	c := &channel{w: w, silence: silence, done: make(chan struct{}), wake: make(chan struct{}, 1),
		conns: map[uint32]*conn{}, heard: time.Now()}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// begin reads and writes until the channel fails.
func (c *channel) begin(r io.Reader) {
	go c.write()
	go c.watch()
	go func() {
		for {
			f, err := readFrame(r)
			if err != nil {
				c.fail(err)
				return
			}
			c.receive(f)
		}
	}()
}

func (c *channel) receive(f frame) {
	c.mu.Lock()
	c.heard = time.Now()
	s := c.conns[f.id]
	c.mu.Unlock()
	switch f.kind {
	case kindPing:
	case kindOpen:
		if c.opened != nil {
			c.opened(c.stream(f.id))
		}
	case kindData, kindTaken, kindEnd:
		if s != nil {
			s.receive(f)
		}
	default:
		c.handle(f)
	}
}

// send queues a frame. It does not block.
func (c *channel) send(k kind, id uint32, body []byte) {
	c.mu.Lock()
	if c.err == nil {
		c.queue = append(c.queue, byte(k))
		c.queue = binary.LittleEndian.AppendUint32(c.queue, id)
		c.queue = binary.LittleEndian.AppendUint32(c.queue, uint32(len(body)))
		c.queue = append(c.queue, body...)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *channel) write() {
	for {
		c.mu.Lock()
		part := c.queue
		c.queue, c.busy = nil, len(part) > 0
		failed := c.err
		if !c.busy {
			c.idle.Broadcast()
		}
		c.mu.Unlock()
		if failed != nil {
			return
		}
		if len(part) > 0 {
			if _, err := c.w.Write(part); err != nil {
				c.fail(err)
				return
			}
			continue
		}
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
	}
}

// flush waits, for some time at most, until sent frames have been written.
func (c *channel) flush(atMost time.Duration) {
	t := time.AfterFunc(atMost, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		atMost = 0
		c.idle.Broadcast()
	})
	defer t.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for (len(c.queue) > 0 || c.busy) && c.err == nil && atMost > 0 {
		c.idle.Wait()
	}
}

// watch fails the channel when the other side is silent. Time in which this process itself was
// stopped does not count, nor that between pause and resume.
func (c *channel) watch() {
	every := c.silence / 6
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-tick.C:
		case <-c.done:
			return
		}
		now := time.Now()
		c.mu.Lock()
		if c.paused || now.Sub(last) > 2*every {
			c.heard = now
		}
		silent := now.Sub(c.heard) > c.silence
		c.mu.Unlock()
		if last = now; silent {
			c.fail(errSilent)
			return
		}
		c.send(kindPing, 0, nil)
	}
}

func (c *channel) pause(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused, c.heard = paused, time.Now()
}

// fail ends the channel and all of its streams.
func (c *channel) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	all := slices.Collect(maps.Values(c.conns))
	c.idle.Broadcast()
	c.mu.Unlock()
	if c.ending != nil {
		c.ending()
	}
	close(c.done)
	for _, s := range all {
		s.fail(err)
	}
}

// cause is why the channel has failed.
func (c *channel) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// stream is a stream that both sides know, by its number.
func (c *channel) stream(id uint32) *conn {
	s := &conn{ch: c, id: id, room: window}
	s.change = sync.NewCond(&s.mu)
	c.mu.Lock()
	c.conns[id] = s
	s.err = c.err
	c.mu.Unlock()
	return s
}

// open opens a stream that the other side does not know.
func (c *channel) open(id uint32) *conn {
	s := c.stream(id)
	c.send(kindOpen, id, nil)
	return s
}

// conn is one stream of a channel, in both directions.
type conn struct {
	ch *channel
	id uint32

	mu      sync.Mutex
	change  *sync.Cond
	in      []byte
	inEnd   bool // nothing more will come
	discard bool // nobody takes what comes
	room    int  // that may be sent
	outEnd  bool
	err     error
}

func (s *conn) receive(f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.kind {
	case kindData:
		if s.discard {
			s.taken(len(f.body))
		} else {
			s.in = append(s.in, f.body...)
		}
	case kindTaken:
		s.room += f.number()
	case kindEnd:
		s.inEnd = true
		s.forgetLocked()
	}
	s.change.Broadcast()
}

func (s *conn) taken(n int) {
	if n > 0 {
		s.ch.send(kindTaken, s.id, binary.LittleEndian.AppendUint32(nil, uint32(n)))
	}
}

// forgetLocked frees the number of a stream that has ended in both directions.
func (s *conn) forgetLocked() {
	if s.inEnd && s.outEnd {
		s.ch.mu.Lock()
		delete(s.ch.conns, s.id)
		s.ch.mu.Unlock()
	}
}

func (s *conn) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.change.Broadcast()
}

func (s *conn) Read(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.in) == 0 && !s.inEnd && s.err == nil {
		s.change.Wait()
	}
	if n = copy(p, s.in); n > 0 {
		if s.in = s.in[n:]; len(s.in) == 0 {
			s.in = nil
		}
		s.taken(n)
		return n, nil
	}
	if s.err != nil {
		return 0, s.err
	}
	return 0, io.EOF
}

// buffered is how much can be read at once.
func (s *conn) buffered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.in)
}

func (s *conn) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		s.mu.Lock()
		for s.room == 0 && s.err == nil && !s.outEnd {
			s.change.Wait()
		}
		if err = s.err; err == nil && s.outEnd {
			err = errClosed
		}
		part := min(len(p), s.room, streamPart)
		s.room -= part
		s.mu.Unlock()
		if err != nil {
			return n, err
		}
		s.ch.send(kindData, s.id, p[:part])
		p, n = p[part:], n+part
	}
	return n, nil
}

// CloseWrite ends what goes to the other side.
func (s *conn) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.outEnd {
		s.outEnd = true
		s.ch.send(kindEnd, s.id, nil)
		s.forgetLocked()
		s.change.Broadcast()
	}
	return nil
}

// drop takes what comes from now on for nothing.
func (s *conn) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard = true
	s.taken(len(s.in))
	s.in = nil
}
