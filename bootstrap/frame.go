package bootstrap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// frameType of a message inside TLS; doc.go has the table.
type frameType uint8

const (
	frameHello      frameType = 1
	frameWelcome    frameType = 2
	frameStart      frameType = 3
	frameRefused    frameType = 4
	frameContribute frameType = 5
	frameOutcome    frameType = 6
	frameFailure    frameType = 7
	frameGiveUp     frameType = 8
	frameCredential frameType = 9
)

const (
	frameHeadBytes = 5
	maxHello       = 64 << 10           // before a rank is known
	maxFrameToRoot = MaxBlob + 1<<20    // a sealed blob with its header
	maxFrameToPeer = MaxResult + 1<<20  // an outcome
	helloMagic     = uint32(0x4a434249) // "IBCJ"
	protocol       = uint16(1)          // of the frames
)

// newFrame starts a frame; finish sets its length.
func newFrame(t frameType, capacity int) []byte {
	b := make([]byte, frameHeadBytes, frameHeadBytes+capacity)
	b[0] = byte(t)
	return b
}

func encodeFrame(t frameType, m message) []byte { return finish(encode(newFrame(t, 256), m)) }

func finish(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-frameHeadBytes))
	return b
}

// readFrame reads one frame of at most limit bytes. Memory grows with what
// arrives, not with the announced length.
func readFrame(r io.Reader, limit int) (frameType, []byte, error) {
	var head [frameHeadBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	t, n := frameType(head[0]), int64(binary.LittleEndian.Uint32(head[1:]))
	if n > int64(limit) {
		return t, nil, fmt.Errorf("frame %d of %d bytes, at most %d", t, n, limit)
	}
	var body bytes.Buffer
	body.Grow(int(min(n, 64<<10)))
	if _, err := io.CopyN(&body, r, n); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return t, nil, err
	}
	return t, body.Bytes(), nil
}

// hello is the first frame of a rank. Magic, protocol, rank, pid and host keep
// their place in every protocol, so that a mixed job learns which rank differs.
type hello struct {
	protocol  uint16
	rank, pid uint32
	host      string
	size      uint32
	job       string
	hostID    string
}

func (h hello) process() string { return fmt.Sprintf("%s pid %d", h.host, h.pid) }

func (h *hello) fields(c *codec) {
	magic := helloMagic
	c.numbers(&magic, &h.protocol, &h.rank, &h.pid)
	if c.err == nil && magic != helloMagic {
		c.fail(errors.New("not a hello of this library"))
	}
	if c.texts(&h.host); c.reads && h.protocol != protocol {
		c.stop()
		return
	}
	c.numbers(&h.size)
	c.texts(&h.job, &h.hostID)
}

// start is sent to a rank when all have arrived.
type start struct {
	job                  string
	localRank, localSize uint32
}

func (s *start) fields(c *codec) {
	c.texts(&s.job)
	c.numbers(&s.localRank, &s.localSize)
}

// maxListed ranks are named in a refusal.
const maxListed = 4096

func (e *JoinError) fields(c *codec) {
	n := uint32(min(len(e.Ranks), maxListed))
	if c.numbers(&e.Reason, &n); c.reads {
		if n > maxListed || int(n)*4 > len(c.b) {
			c.fail(errShort)
			return
		}
		e.Ranks = make([]int, n)
	}
	for i := range n {
		rank := uint32(e.Ranks[i])
		if c.numbers(&rank); c.reads {
			e.Ranks[i] = int(rank)
		}
	}
	c.texts(&e.Text)
}

// contribution of a rank to a collective.
type contribution struct {
	op   op
	seq  uint32
	blob []byte
}

func (m *contribution) fields(c *codec) {
	c.numbers(&m.op, &m.seq)
	c.bytes(&m.blob, len(c.b))
}

// encodedLocked works once for all ranks. The lock is the hub's.
func (o *outcome) encodedLocked() []byte {
	if o.frame == nil {
		o.frame = encodeFrame(frameOutcome, o)
	}
	return o.frame
}

// fields reads as many blobs as there are.
func (o *outcome) fields(c *codec) {
	n := uint32(len(o.blobs))
	c.numbers(&o.op, &o.seq, &n)
	switch total := 0; {
	case !c.reads:
		for _, blob := range o.blobs {
			total += 4 + len(blob)
		}
		c.b = slices.Grow(c.b, total)
	case c.err == nil && int64(n) != int64(len(o.blobs)):
		c.fail(fmt.Errorf("outcome for %d ranks, not %d", n, len(o.blobs)))
	}
	for r := range o.blobs {
		n := uint32(len(o.blobs[r]))
		c.numbers(&n)
		c.bytes(&o.blobs[r], int(n))
	}
}

func decodeOutcome(b []byte, size int) (*outcome, error) {
	if size*4 > len(b) {
		return nil, errShort
	}
	o := &outcome{blobs: make([][]byte, size)}
	return o, decode(b, o)
}

func (f *failure) fields(c *codec) {
	rank := uint32(f.rank)
	c.numbers(&rank, &f.why.kind, &f.why.code)
	c.texts(&f.process, &f.why.text)
	if c.reads {
		f.rank = int(rank)
	}
}

func decodeFailure(b []byte, size int) (*failure, error) {
	f := &failure{why: &cause{}}
	if err := decode(b, f); err != nil {
		return nil, err
	}
	switch {
	case uint(f.rank) >= uint(size):
		return nil, fmt.Errorf("failure of rank %d of %d", f.rank, size)
	case f.why.kind == 0 || f.why.kind >= causeEnd:
		return nil, fmt.Errorf("failure of unknown kind %d", f.why.kind)
	}
	return f, nil
}

// withdrawal is of a rank whose context has ended.
type withdrawal struct {
	seq  uint32
	text string
}

func (g *withdrawal) fields(c *codec) {
	c.numbers(&g.seq)
	c.texts(&g.text)
}
