// Package mux carries frames and streams of bytes over one connection, as the standard input and
// output of another program. Frames arrive in the order of sending. Each stream has a window of its
// own, so that one without a reader holds up no other.
//
// A frame is kind u8, id u32, length u32, all little-endian, and a body of that length. Kinds
// below [First] belong to streams, by their numbers: 1 open, 2 data, 3 taken (u32: so many
// bytes may be sent again), 4 end in one direction; 5 is sent so that something is heard. All
// others are the user's.
package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// Kind of a frame.
type Kind uint8

const (
	open  Kind = iota + 1 // id is a new stream
	data                  // of a stream
	taken                 // u32: so many bytes of a stream have been taken
	end                   // of a stream, in one direction
	ping
)

// First is the first kind that a user may give to frames.
const First Kind = 16

const (
	frameHead = 9
	frameMost = 16 << 20 // bytes of a body

	// Part is how many bytes of a stream are in one frame at most.
	Part = 32 << 10
	// Window is how many bytes of a stream have not been taken at most.
	Window = 256 << 10
)

// Frame is one message of a channel.
type Frame struct {
	Kind Kind
	ID   uint32
	Body []byte
}

// Number is the u32 of a body.
func (f Frame) Number() (n int) {
	if len(f.Body) >= 4 {
		n = int(binary.LittleEndian.Uint32(f.Body))
	}
	return n
}

// ReadFrame reads one.
func ReadFrame(r io.Reader) (Frame, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(head[0]), ID: binary.LittleEndian.Uint32(head[1:])}
	n := binary.LittleEndian.Uint32(head[5:])
	if n > frameMost {
		return Frame{}, fmt.Errorf("a frame of %d bytes", n)
	}
	f.Body = make([]byte, n)
	_, err := io.ReadFull(r, f.Body)
	return f, err
}

// ErrSilent ends a channel of which nothing is heard.
var ErrSilent = errors.New("nothing was heard of it any more")

var (
	errClosed  = errors.New("the channel is closed")
	errOverrun = errors.New("more of a stream came than its window allows")
)

// Channel is one end of a connection. The functions are set before Begin.
type Channel struct {
	w       io.Writer
	silence time.Duration
	Handle  func(f Frame)   // takes a frame of the user's; one at a time; it does not block
	Opened  func(s *Stream) // of a stream that the other side opened; it does not block; may be nil
	Ending  func()          // called before the streams learn of the channel's end; may be nil
	done    chan struct{}   // closed with the channel
	wake    chan struct{}   // capacity 1

	mu      sync.Mutex
	queue   []byte
	idle    *sync.Cond // the queue has been written
	busy    bool       // the writer has a part of it
	streams map[uint32]*Stream
	heard   time.Time
	paused  bool
	err     error
}

// New makes a channel that writes to w. Where nothing is heard for longer than silence it fails; 0
// is for ever.
func New(w io.Writer, silence time.Duration) *Channel {
	c := &Channel{w: w, silence: silence, done: make(chan struct{}), wake: make(chan struct{}, 1),
		streams: map[uint32]*Stream{}, heard: time.Now()}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// Begin reads and writes until the channel fails.
func (c *Channel) Begin(r io.Reader) {
	go c.write()
	if c.silence > 0 {
		go c.watch()
	}
	go func() {
		for {
			f, err := ReadFrame(r)
			if err != nil {
				c.Fail(err)
				return
			}
			c.receive(f)
		}
	}()
}

func (c *Channel) receive(f Frame) {
	c.mu.Lock()
	c.heard = time.Now()
	s := c.streams[f.ID]
	c.mu.Unlock()
	switch f.Kind {
	case ping:
	case open:
		if c.Opened != nil {
			c.Opened(c.Stream(f.ID))
		}
	case data, taken, end:
		if s != nil {
			s.receive(f)
		}
	default:
		c.Handle(f)
	}
}

// Send queues a frame. It does not block.
func (c *Channel) Send(k Kind, id uint32, body []byte) {
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

func (c *Channel) write() {
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
				c.Fail(err)
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

// Flush waits, for some time at most, until sent frames have been written.
func (c *Channel) Flush(atMost time.Duration) {
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
func (c *Channel) watch() {
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
			c.Fail(ErrSilent)
			return
		}
		c.Send(ping, 0, nil)
	}
}

// Pause keeps silence from ending the channel, or no longer.
func (c *Channel) Pause(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused, c.heard = paused, time.Now()
}

// Fail ends the channel and all of its streams.
func (c *Channel) Fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	all := slices.Collect(maps.Values(c.streams))
	c.idle.Broadcast()
	c.mu.Unlock()
	if c.Ending != nil {
		c.Ending()
	}
	close(c.done)
	for _, s := range all {
		s.fail(err)
	}
}

// Done is closed with the channel.
func (c *Channel) Done() <-chan struct{} { return c.done }

// Cause is why the channel has failed.
func (c *Channel) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Stream is a stream that both sides know, by its number.
func (c *Channel) Stream(id uint32) *Stream {
	s := &Stream{ch: c, id: id, room: Window}
	s.change = sync.NewCond(&s.mu)
	c.mu.Lock()
	c.streams[id] = s
	s.err = c.err
	c.mu.Unlock()
	return s
}

// Open opens a stream that the other side does not know.
func (c *Channel) Open(id uint32) *Stream {
	s := c.Stream(id)
	c.Send(open, id, nil)
	return s
}
