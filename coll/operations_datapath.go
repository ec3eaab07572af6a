package coll

import (
	"encoding/binary"
	"fmt"
)

// meet is a dissemination barrier (Hensgen, Finkel, Manber 1988): in round r every member sends a
// message to the one 2^r after it, and waits for the one 2^r before. It needs no acknowledgements:
// see met.
func (o *op) meet() error {
	o.mute = true
	for r := range o.t.rails {
		if err := o.send(r, nil); err != nil {
			return err
		}
		if err := o.take(r, nil); err != nil {
			return err
		}
	}
	o.met()
	return nil
}

// head is the number of bytes that the root sends in all, in front of a broadcast's first message.
const head = 8

// broadcast sends buf down a binomial tree, message by message, as they come. A member with a
// buffer of another length passes the messages on and keeps nothing.
func (o *op) broadcast() error {
	t, buf, chunk := o.t, o.buf, int(o.t.teams.shape.chunk)
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
		part := t.desk()[:min(total-at, uint64(chunk))]
		if fits {
			part = buf[at:][:len(part)]
		} else if err := o.settle(o.ctx); err != nil { // it is used again
			return err
		}
		if me != 0 {
			if err := o.take(low, part); err != nil {
				return err
			}
		}
		if err := o.pass(me, low, part); err != nil {
			return err
		}
	}
	if !fits {
		o.verdict = fmt.Errorf("coll: %w", &LengthError{Op: KindBroadcast.String(), Rank: t.me, Len: uint64(len(buf)), Root: o.root, RootLen: total})
	}
	return nil
}

// first passes a broadcast's first message on. total is the root's length.
func (o *op) first(me, low int) (total uint64, err error) {
	t, buf := o.t, o.buf
	room := int(t.teams.shape.chunk) - head
	msg := t.desk()
	if me == 0 {
		total = uint64(len(buf))
		binary.LittleEndian.PutUint64(msg, total)
		msg = msg[:head+copy(msg[head:head+room], buf)]
		return total, o.pass(me, low, msg)
	}
	b, err := o.receive(low)
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
	if err := o.consumed(low); err != nil {
		return 0, err
	}
	return total, o.pass(me, low, b)
}

// pass sends a message to the children of a node of the binomial tree.
func (o *op) pass(me, low int, data []byte) error {
	for r := low - 1; r >= 0; r-- {
		if me+1<<r < o.t.n {
			if err := o.send(r, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxGather bounds what an all-gather returns, in bytes: a length that arrives is not a reason to
// run out of memory.
const maxGather = 1 << 32

// gather returns every member's blob, of whatever length, by rank.
func (o *op) gather(mine []byte) ([][]byte, error) {
	t := o.t
	lengths, err := o.gatherEqual(binary.LittleEndian.AppendUint64(nil, uint64(len(mine))))
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
	if err := o.bruck(blobs, func(k int) uint64 { return ends[k-1] }); err != nil {
		return nil, err
	}
	all, at := make([][]byte, t.n), uint64(0)
	for k, end := range ends {
		all[(t.me-k+t.n)%t.n] = blobs[at:end:end]
		at = end
	}
	return all, nil
}

// gatherEqual returns the members' blobs one behind the other, by rank. All are as long as mine.
func (o *op) gatherEqual(mine []byte) ([]byte, error) {
	t, n := o.t, len(mine)
	blobs := make([]byte, t.n*n)
	copy(blobs, mine)
	if err := o.bruckEqual(blobs, n); err != nil {
		return nil, err
	}
	all := make([]byte, 0, len(blobs))
	for i := range t.n {
		k := (t.me - i + t.n) % t.n
		all = append(all, blobs[k*n:(k+1)*n]...)
	}
	return all, nil
}

// bruckEqual is bruck for blobs of n bytes. Where each rail has one message it is, like meet,
// without acknowledgements.
func (o *op) bruckEqual(blobs []byte, n int) error {
	single := n > 0 && uint64(len(blobs)) <= o.t.teams.shape.chunk
	o.mute = o.mute || single
	if err := o.bruck(blobs, func(k int) uint64 { return uint64(k * n) }); err != nil {
		return err
	}
	if single {
		o.met()
	}
	return nil
}

// bruck fills blobs, which begins with this member's own, with those of the members before it, the
// nearest first (Bruck et al. 1997). In round r a member has the blobs of 2^r members, and sends
// them, or what is still missing there, to the one 2^r after it. Each blob reaches each member
// once. size is how many bytes the first k blobs have.
func (o *op) bruck(blobs []byte, size func(k int) uint64) error {
	for r := range o.t.rails {
		has := 1 << r
		more := min(has, o.t.n-has)
		// The receiver's blobs are others: the ones that it gets are those that this member has.
		if err := o.exchange(r, blobs[:size(more)], blobs[size(has):size(has+more)]); err != nil {
			return err
		}
	}
	return nil
}

// volumeError says that an all-gather would return too much. All members find it.
type volumeError struct {
	rank int
	n    uint64
}

func (e *volumeError) Error() string {
	return fmt.Sprintf("the blobs have more than %d bytes in all, that of rank %d %d: gather less at a time", uint64(maxGather), e.rank, e.n)
}
