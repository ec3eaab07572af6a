package bootstrap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

func (h hello) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(newFrame(frameHello, 256), helloMagic)
	b = le.AppendUint16(b, h.protocol)
	b = le.AppendUint32(b, h.rank)
	b = le.AppendUint32(b, h.pid)
	b = appendString(b, h.host)
	b = le.AppendUint32(b, h.size)
	b = appendString(b, h.job)
	return finish(appendString(b, h.hostID))
}

func decodeHello(b []byte) (hello, error) {
	d := decoder{b: b}
	if d.u32() != helloMagic && d.err == nil {
		return hello{}, errors.New("not a hello of this library")
	}
	h := hello{protocol: d.u16(), rank: d.u32(), pid: d.u32(), host: d.str()}
	if h.protocol == protocol {
		h.size, h.job, h.hostID = d.u32(), d.str(), d.str()
		d.end()
	}
	return h, d.err
}

// start is sent to a rank when all have arrived.
type start struct {
	job                  string
	localRank, localSize uint32
}

func (s start) encode() []byte {
	b := appendString(newFrame(frameStart, 64), s.job)
	b = binary.LittleEndian.AppendUint32(b, s.localRank)
	return finish(binary.LittleEndian.AppendUint32(b, s.localSize))
}

func decodeStart(b []byte) (start, error) {
	d := decoder{b: b}
	s := start{d.str(), d.u32(), d.u32()}
	d.end()
	return s, d.err
}

func (e *JoinError) encode() []byte {
	b := append(newFrame(frameRefused, 64+len(e.Text)), byte(e.Reason))
	ranks := e.Ranks[:min(len(e.Ranks), maxListed)]
	b = binary.LittleEndian.AppendUint32(b, uint32(len(ranks)))
	for _, r := range ranks {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	return finish(appendString(b, e.Text))
}

// maxListed ranks are named in a refusal.
const maxListed = 4096

func decodeRefused(b []byte) (*JoinError, error) {
	d := decoder{b: b}
	e := &JoinError{Reason: Reason(d.u8())}
	n := d.u32()
	if n > maxListed || int(n)*4 > len(d.b) {
		return nil, errShort
	}
	for range n {
		e.Ranks = append(e.Ranks, int(d.u32()))
	}
	e.Text = d.str()
	d.end()
	return e, d.err
}

func encodeContribute(o op, seq uint32, blob []byte) []byte {
	b := append(newFrame(frameContribute, 5+len(blob)), byte(o))
	b = binary.LittleEndian.AppendUint32(b, seq)
	return finish(append(b, blob...))
}

func decodeContribute(b []byte) (o op, seq uint32, blob []byte, err error) {
	d := decoder{b: b}
	o, seq = op(d.u8()), d.u32()
	return o, seq, d.b, d.err
}

// encodedLocked works once for all ranks. The lock is the hub's.
func (o *outcome) encodedLocked() []byte {
	if o.frame == nil {
		n := 9
		for _, blob := range o.blobs {
			n += 4 + len(blob)
		}
		b := append(newFrame(frameOutcome, n), byte(o.op))
		b = binary.LittleEndian.AppendUint32(b, o.seq)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(o.blobs)))
		for _, blob := range o.blobs {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(blob)))
			b = append(b, blob...)
		}
		o.frame = finish(b)
	}
	return o.frame
}

func decodeOutcome(b []byte, size int) (*outcome, error) {
	d := decoder{b: b}
	o := &outcome{op: op(d.u8()), seq: d.u32()}
	if n := d.u32(); d.err == nil && int64(n) != int64(size) {
		return nil, fmt.Errorf("outcome for %d ranks, not %d", n, size)
	}
	if d.err != nil || size*4 > len(d.b) {
		return nil, errShort
	}
	o.blobs = make([][]byte, size)
	for r := range o.blobs {
		n := d.u32()
		if int64(n) > int64(len(d.b)) {
			return nil, errShort
		}
		o.blobs[r] = d.take(int(n))
	}
	d.end()
	return o, d.err
}

func (f *failure) encode() []byte {
	b := binary.LittleEndian.AppendUint32(newFrame(frameFailure, 128), uint32(f.rank))
	b = append(b, byte(f.why.kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.why.code))
	b = appendString(b, f.process)
	return finish(appendString(b, f.why.text))
}

func decodeFailure(b []byte, size int) (*failure, error) {
	d := decoder{b: b}
	rank := d.u32()
	f := &failure{why: &cause{kind: causeKind(d.u8()), code: int32(d.u32())}}
	f.process, f.why.text = d.str(), d.str()
	d.end()
	switch {
	case d.err != nil:
		return nil, d.err
	case int64(rank) >= int64(size):
		return nil, fmt.Errorf("failure of rank %d of %d", rank, size)
	case f.why.kind == 0 || f.why.kind >= causeEnd:
		return nil, fmt.Errorf("failure of unknown kind %d", f.why.kind)
	}
	f.rank = int(rank)
	return f, nil
}

func encodeGiveUp(seq uint32, text string) []byte {
	b := binary.LittleEndian.AppendUint32(newFrame(frameGiveUp, 64), seq)
	return finish(appendString(b, text))
}

func decodeGiveUp(b []byte) (seq uint32, text string, err error) {
	d := decoder{b: b}
	seq, text = d.u32(), d.str()
	d.end()
	return seq, text, d.err
}
