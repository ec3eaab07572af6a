package alloc

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
)

// Checked is an allocator for tests and the debug build: it passes everything on, keeps a table of
// its own, and compares. It takes a time that grows with the number of blocks only logarithmically.
type Checked struct {
	below  Allocator
	blocks map[uint64]*checkedBlock
	order  []uint64 // the keys of blocks, sorted
	cfg    CheckedConfig
	length uint64
}

// CheckedConfig is what a Checked does beside comparing.
type CheckedConfig struct {
	// Bytes is the memory at an offset. Where it is given, memory is filled with Fresh when it is
	// allocated and with Freed when it is freed, and a red zone behind each block shows stores
	// beyond its end when it is freed. Nil: the memory is not touched.
	Bytes func(off, n uint64) []byte
	// Fault is called with each mistake of the allocator below, and of its user. Nil: panic.
	Fault func(error)
}

// What memory is filled with, see CheckedConfig.Bytes.
const (
	Fresh   = 0xCD
	Freed   = 0xDD
	redZone = 0xFD

	redBytes = 16
)

type checkedBlock struct {
	asked, room uint64
	stack       []uintptr
}

// Overrun is a store beyond the end of a block, found when the block was freed.
type Overrun struct {
	Off, Len uint64 // of the block
	At       uint64 // offset of the first byte that was changed
	Stack    string // of the allocation
}

func (e *Overrun) Error() string {
	return fmt.Sprintf("alloc: a store at %#x, beyond the end of the block of %d bytes at %#x, which was allocated by\n%s",
		e.At, e.Len, e.Off, e.Stack)
}

// NewChecked returns an allocator that checks another one, which is empty.
func NewChecked(below Allocator, cfg CheckedConfig) *Checked {
	if cfg.Fault == nil {
		cfg.Fault = func(err error) { panic(err) }
	}
	return &Checked{below: below, blocks: make(map[uint64]*checkedBlock), cfg: cfg}
}

func (a *Checked) fault(format string, args ...any) {
	a.cfg.Fault(fmt.Errorf("alloc: "+format, args...))
}

// Alloc implements Allocator.
func (a *Checked) Alloc(n, align uint64) (uint64, bool) {
	want := n
	if a.cfg.Bytes != nil && n > 0 && n < MaxLen {
		want += redBytes
	}
	off, ok := a.below.Alloc(want, align)
	if !ok && want > n {
		want = n // without a red zone there may be room
		off, ok = a.below.Alloc(want, align)
	}
	if !ok {
		return 0, false
	}
	room := a.below.Room(off)
	if room < want || off > a.length || room > a.length-off {
		a.fault("a block of %d bytes at %#x with room for %d, in a heap of %d", want, off, room, a.length)
		return off, true
	}
	if off&(validAlign(align)-1) != 0 {
		a.fault("a block at %#x, which is no multiple of %d", off, align)
	}
	at, _ := slices.BinarySearch(a.order, off)
	if at < len(a.order) && a.order[at] < off+room {
		a.fault("a block of %d bytes at %#x, over the one at %#x", room, off, a.order[at])
	}
	if at > 0 {
		before := a.order[at-1]
		if b := a.blocks[before]; before+b.room > off {
			a.fault("a block at %#x, in the one of %d bytes at %#x", off, b.room, before)
		}
	}
	a.order = slices.Insert(a.order, at, off)
	b := &checkedBlock{asked: n, room: room, stack: make([]uintptr, 16)}
	b.stack = b.stack[:runtime.Callers(2, b.stack)]
	a.blocks[off] = b
	if a.cfg.Bytes != nil {
		mem := a.cfg.Bytes(off, room)
		fill(mem[:n], Fresh)
		fill(mem[n:], redZone)
	}
	return off, true
}

// Free implements Allocator.
func (a *Checked) Free(off uint64) (uint64, error) {
	b, known := a.blocks[off]
	if known && a.cfg.Bytes != nil {
		mem := a.cfg.Bytes(off, b.room)
		if i := slices.IndexFunc(mem[b.asked:], func(v byte) bool { return v != redZone }); i >= 0 {
			a.cfg.Fault(&Overrun{Off: off, Len: b.asked, At: off + b.asked + uint64(i), Stack: b.trace()})
		}
		fill(mem, Freed)
	}
	n, err := a.below.Free(off)
	switch {
	case known && err != nil:
		a.fault("the block at %#x was refused: %w", off, err)
	case !known && err == nil:
		a.fault("%d bytes at %#x were freed, where no block is in use", n, off)
	case known && n != b.room:
		a.fault("the block at %#x had room for %d bytes, and %d were freed", off, b.room, n)
	}
	if at, found := slices.BinarySearch(a.order, off); found {
		a.order = slices.Delete(a.order, at, at+1)
		delete(a.blocks, off)
	}
	return n, err
}

// Room implements Allocator: without the red zone.
func (a *Checked) Room(off uint64) uint64 {
	b, ok := a.blocks[off]
	if !ok {
		return 0
	}
	if a.cfg.Bytes != nil {
		return b.asked
	}
	return b.room
}

// Need implements Allocator: without a red zone, which Alloc does without if it must.
func (a *Checked) Need(n, align uint64) uint64 { return a.below.Need(n, align) }

// Grow implements Allocator.
func (a *Checked) Grow(n uint64) {
	a.below.Grow(n)
	a.length += n
	if got := a.below.Stats().Len; got != a.length {
		a.fault("a heap of %d bytes grew by %d to %d", a.length-n, n, got)
	}
}

// Trim implements Allocator.
func (a *Checked) Trim() uint64 {
	n := a.below.Trim()
	if n > a.length || n%PageSize != 0 {
		a.fault("a heap of %d bytes was trimmed to %d", a.length, n)
	}
	if len(a.order) > 0 {
		last := a.order[len(a.order)-1]
		if b := a.blocks[last]; last+b.room > n {
			a.fault("a heap was trimmed to %d bytes, with a block of %d at %#x in use", n, b.room, last)
		}
	}
	a.length = n
	return n
}

// Stats implements Allocator.
func (a *Checked) Stats() Stats {
	s := a.below.Stats()
	if s.Blocks != uint64(len(a.order)) || s.InUse+s.Free != s.Len || s.LargestFree > s.Free {
		a.fault("%d blocks are in use, and the figures are %+v", len(a.order), s)
	}
	return s
}

func (b *checkedBlock) trace() string {
	var text bytes.Buffer
	for frames := runtime.CallersFrames(b.stack); ; {
		f, more := frames.Next()
		fmt.Fprintf(&text, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return text.String()
		}
	}
}

func fill(b []byte, v byte) {
	if len(b) > 0 {
		b[0] = v
	}
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
