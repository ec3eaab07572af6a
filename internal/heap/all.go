package heap

import (
	"bytes"
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
		if err := compare(ctx, h.team, op, count, size, align); err != nil {
			return Ptr{}, err
		}
	}
	var o outcome
	if h.rank == 0 {
		p, err := h.globalAlloc(ctx, op, count, size, align)
		o = outcome{Node: uint64(p.node), Off: p.off, Count: count, Size: size, Align: align}
		o.setError(err)
		if ctx.Err() != nil { // the others wait for the outcome; they do not know this context
			var cancel context.CancelFunc
			ctx, cancel = h.env.Host().WithTimeout(context.WithoutCancel(ctx), timeout)
			defer cancel()
		}
	}
	buf, _ := binary.Append(nil, binary.LittleEndian, &o)
	if err := h.team.Broadcast(ctx, 0, buf); err != nil {
		if h.rank == 0 && o.Node != 0 {
			err = errors.Join(err, h.freeHere(o.Off, false)) // a rank that has the pointer finds the team broken
		}
		return Ptr{}, fmt.Errorf("conduit: %s: %w", op, err)
	}
	_, _ = binary.Decode(buf, binary.LittleEndian, &o)
	if err := o.error(op, h.size); err != nil {
		return Ptr{}, err
	}
	if o.Count != count || o.Size != size || o.Align != align {
		return Ptr{}, &MismatchError{Op: op, Rank: h.rank, Other: 0}
	}
	return Ptr{node: uint32(o.Node), off: o.Off}, nil
}

// AllFree frees a block when all ranks have called it, with the same pointer: until then all may
// use the block. All get the same error.
func (h *Heap) AllFree(ctx context.Context, p Ptr) error {
	const op = "all free"
	if err := compare(ctx, h.team, op, uint64(p.node), p.off); err != nil {
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
func compare(ctx context.Context, team Team, op string, mine ...uint64) error {
	words, _ := binary.Append(nil, binary.LittleEndian, mine)
	all, err := team.AllGather(ctx, words)
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

// outcome is the message that rank 0 broadcasts of an AllAlloc, in this order.
type outcome struct {
	Node, Off          uint64 // the pointer's
	Count, Size, Align uint64
	Kind               uint64 // of the error
	Requested          uint64
	Figures            [6]uint64
	Text               [104]byte // of any other error
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
		o.Kind, o.Requested = errorMemory, memory.Requested
		o.Figures = [6]uint64{memory.GlobalInUse, memory.GlobalSize, memory.Reserved, uint64(memory.ReservedBy),
			memory.LargestFree, memory.LocalInUse}
	case errors.As(err, &size):
		o.Kind = errorSize
	default:
		o.Kind = errorOther
		copy(o.Text[:], err.Error())
	}
}

// error is rank 0's.
func (o *outcome) error(op string, heapSize uint64) error {
	switch o.Kind {
	case errorNone:
		return nil
	case errorMemory:
		e := &NoMemoryError{Op: op, Requested: o.Requested, Align: o.Align, HeapSize: heapSize}
		e.setFigures(o.Figures[:])
		return e
	case errorSize:
		if err := checkAlign(op, o.Align); err != nil {
			return err
		}
		return &SizeError{Op: op, Count: o.Count, Size: o.Size, Overflow: true}
	}
	return fmt.Errorf("conduit: %s: rank 0 failed: %s", op, bytes.TrimRight(o.Text[:], "\x00"))
}
