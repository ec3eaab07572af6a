package coll

import (
	"encoding/binary"
	"fmt"
)

// head is the number of bytes that the root sends in all, in front of a broadcast's first message.
const head = 8

// broadcast sends buf down a binomial tree, message by message, as they come. A member with a
// buffer of another length passes the messages on and keeps nothing.
func (o *op) broadcast() error {
	t, buf, chunk := o.t, o.buf, int(o.t.shared.shape.chunk)
	me := t.me - o.root // the root is 0 in the tree
	if me < 0 {
		me += t.n
	}
	// A node's children differ from it in one bit below its lowest set bit, its parent in that.
	low := t.lowest(me)
	total, err := o.first(me, low)
	if err != nil {
		return err
	}
	fits := total == uint64(len(buf))
	for at := uint64(chunk - head); at < total; at += uint64(chunk) {
		part := t.scratch()[:min(total-at, uint64(chunk))]
		if fits {
			part = buf[at:][:len(part)]
		} else if err := o.settle(o.ctx); err != nil { // it is used again
			return err
		}
		if me != 0 {
			if err := o.rails.take(low, part); err != nil {
				return err
			}
		}
		if err := o.rails.pass(me, low, part); err != nil {
			return err
		}
	}
	if !fits {
		o.verdict = fmt.Errorf("coll: %w", &LengthError{Op: KindBroadcast.String(), Rank: t.me, Len: uint64(len(buf)),
			Root: o.root, RootLen: total})
	}
	return nil
}

// first passes a broadcast's first message on. total is the root's length.
func (o *op) first(me, low int) (total uint64, err error) {
	t, buf := o.t, o.buf
	room := int(t.shared.shape.chunk) - head
	msg := t.scratch()
	if me == 0 {
		total = uint64(len(buf))
		binary.LittleEndian.PutUint64(msg, total)
		msg = msg[:head+copy(msg[head:head+room], buf)]
		return total, o.rails.pass(me, low, msg)
	}
	b, err := o.rails.receive(low)
	if err != nil {
		return 0, err
	}
	total = binary.LittleEndian.Uint64(b)
	b = b[:head+int(min(total, uint64(room)))]
	if total == uint64(len(buf)) {
		copy(buf, b[head:])
	}
	if low > 0 { // it has children, who may get it when the sender's memory is free again
		b = msg[:copy(msg, b)]
	}
	if err := o.rails.consumed(low); err != nil {
		return 0, err
	}
	return total, o.rails.pass(me, low, b)
}

// maxGather bounds what an all-gather returns, in bytes: a length that arrives is not a reason to
// run out of memory.
const maxGather = 1 << 32

// gather returns every member's blob, of whatever length, by rank.
func (o *op) gather(mine []byte) ([][]byte, error) {
	t := o.t
	lengths, err := o.rails.gatherEqual(binary.LittleEndian.AppendUint64(nil, uint64(len(mine))))
	if err != nil {
		return nil, err
	}
	// ends[k] is where the blob of the member k before this one ends.
	ends, total := make([]uint64, t.n), uint64(0)
	for k := range t.n {
		i := (t.me - k + t.n) % t.n
		n := binary.LittleEndian.Uint64(lengths[8*i:])
		if total += n; n > maxGather || total > maxGather {
			return nil, &volumeError{rank: t.Member(i), n: n}
		}
		ends[k] = total
	}
	blobs := make([]byte, total)
	copy(blobs, mine)
	if err := o.rails.bruck(blobs, func(k int) uint64 { return ends[k-1] }); err != nil {
		return nil, err
	}
	all, at := make([][]byte, t.n), uint64(0)
	for k, end := range ends {
		all[(t.me-k+t.n)%t.n] = blobs[at:end:end]
		at = end
	}
	return all, nil
}

// volumeError says that an all-gather would return too much. All members find it.
type volumeError struct {
	rank int
	n    uint64
}

func (e *volumeError) Error() string {
	return fmt.Sprintf("the blobs have more than %d bytes in all, that of rank %d %d: gather less at a time",
		uint64(maxGather), e.rank, e.n)
}
