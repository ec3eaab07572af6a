package heap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// AllAlloc is GlobalAlloc that all ranks call together, with the same arguments: all get the same
// pointer, or the same error; so they do where rank 0's ctx ends while it allocates. A rank may use
// the memory, at any rank, as soon as its own call returns. One broadcast from rank 0.
func (h *Heap) AllAlloc(ctx context.Context, count, size, align uint64) (Ptr, error) {
	const op = "all alloc"
	if h.cfg.Check {
		mine := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil,
			count), size), align)
		if err := h.compare(ctx, op, mine); err != nil {
			return Ptr{}, err
		}
	}
	var o outcome
	if h.rank == 0 {
		p, err := h.globalAlloc(ctx, op, count, size, align)
		o = outcome{ptr: p, count: count, size: size, align: align}
		o.setError(err)
		if ctx.Err() != nil { // the others wait for the outcome; they do not know this context
			var cancel context.CancelFunc
			ctx, cancel = h.env.Host().WithTimeout(context.WithoutCancel(ctx), timeout)
			defer cancel()
		}
	}
	buf := o.encode()
	if err := h.team.Broadcast(ctx, 0, buf); err != nil {
		if h.rank == 0 && !o.ptr.IsNull() {
			err = errors.Join(err, h.freeHere(o.ptr.off, false)) // a rank that has the pointer finds the team broken
		}
		return Ptr{}, fmt.Errorf("conduit: %s: %w", op, err)
	}
	o.decode(buf)
	if err := o.error(op, h.size); err != nil {
		return Ptr{}, err
	}
	if o.count != count || o.size != size || o.align != align {
		return Ptr{}, &MismatchError{Op: op, Rank: h.rank, Other: 0}
	}
	return o.ptr, nil
}

// AllFree frees a block when all ranks have called it, with the same pointer: until then all may
// use the block. All get the same error.
func (h *Heap) AllFree(ctx context.Context, p Ptr) error {
	const op = "all free"
	mine := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, p.node), p.off)
	if err := h.compare(ctx, op, mine); err != nil {
		if errors.As(err, new(*MismatchError)) {
			return &FreeError{Ptr: p, Reason: Differing}
		}
		return err
	}
	if p.IsNull() {
		return nil
	}
	owner := p.Rank()
	if owner >= h.env.Size() {
		return &FreeError{Ptr: p, Reason: Outside}
	}
	buf := make([]byte, 16)
	if h.rank == owner {
		if e := (*FreeError)(nil); errors.As(h.freeHere(p.off, false), &e) {
			buf[0] = byte(e.Reason)
			binary.LittleEndian.PutUint64(buf[8:], e.Block.off)
		}
	}
	if err := h.team.Broadcast(ctx, owner, buf); err != nil {
		return fmt.Errorf("conduit: %s: %w", op, err)
	}
	if buf[0] == 0 {
		return nil
	}
	e := &FreeError{Ptr: p, Reason: Reason(buf[0])}
	if e.Reason == Interior {
		e.Block = At(owner, binary.LittleEndian.Uint64(buf[8:]))
	}
	return e
}

// compare fails on all ranks alike unless all give the same. It returns when all have called it.
func (h *Heap) compare(ctx context.Context, op string, mine []byte) error {
	all, err := h.team.AllGather(ctx, mine)
	if err != nil {
		return fmt.Errorf("conduit: %s: %w", op, err)
	}
	for r, b := range all {
		if string(b) != string(all[0]) {
			return &MismatchError{Op: op, Rank: r, Other: 0}
		}
	}
	return nil
}

// outcome is what rank 0 broadcasts of an AllAlloc.
type outcome struct {
	ptr                Ptr
	count, size, align uint64
	kind               uint64 // of the error
	requested          uint64
	figures            [6]uint64
	text               [104]byte // of any other error
}

const (
	errorNone = iota
	errorMemory
	errorSize
	errorOther
)

func (o *outcome) setError(err error) {
	var memory *NoMemoryError
	var size *SizeError
	switch {
	case err == nil:
	case errors.As(err, &memory):
		o.kind, o.requested = errorMemory, memory.Requested
		o.figures = [6]uint64{memory.GlobalInUse, memory.GlobalSize, memory.Reserved, uint64(memory.ReservedBy),
			memory.LargestFree, memory.LocalInUse}
	case errors.As(err, &size):
		o.kind = errorSize
	default:
		o.kind = errorOther
		copy(o.text[:], err.Error())
	}
}

// error is rank 0's.
func (o *outcome) error(op string, heapSize uint64) error {
	switch o.kind {
	case errorNone:
		return nil
	case errorMemory:
		e := &NoMemoryError{Op: op, Requested: o.requested, Align: o.align, HeapSize: heapSize}
		e.setFigures(o.figures[:])
		return e
	case errorSize:
		if err := checkAlign(op, o.align); err != nil {
			return err
		}
		return &SizeError{Op: op, Count: o.count, Size: o.size, Overflow: true}
	}
	text := o.text[:]
	for len(text) > 0 && text[len(text)-1] == 0 {
		text = text[:len(text)-1]
	}
	return fmt.Errorf("conduit: %s: rank 0 failed: %s", op, text)
}

func (o *outcome) words() []*uint64 {
	return []*uint64{&o.ptr.off, &o.count, &o.size, &o.align, &o.kind, &o.requested,
		&o.figures[0], &o.figures[1], &o.figures[2], &o.figures[3], &o.figures[4], &o.figures[5]}
}

func (o *outcome) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(o.ptr.node))
	for _, w := range o.words() {
		b = binary.LittleEndian.AppendUint64(b, *w)
	}
	return append(b, o.text[:]...)
}

func (o *outcome) decode(b []byte) {
	o.ptr.node = uint32(binary.LittleEndian.Uint64(b))
	for i, w := range o.words() {
		*w = binary.LittleEndian.Uint64(b[8*i+8:])
	}
	copy(o.text[:], b[8*len(o.words())+8:])
}
