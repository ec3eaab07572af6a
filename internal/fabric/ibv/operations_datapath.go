//go:build linux && cgo

package ibv

import "github.com/ibconduit/conduit/internal/fabric"

// operation is the record of one that has a handle, of a loop, of a piece of a batch that is not
// carried out by a merged request, or of a group of a batch.
type operation struct {
	generation uint32
	next       int32
	parts      int32 // work requests that have not ended
	live       bool  // its handle is not spent, or work requests are in flight
	abandoned  bool  // its outcome is not collected
	group      bool  // of a batch: parts are requests, and pieces with a record
	piece      bool  // of a batch, or an implicit loop
	rank       int32
	old        uint64
	err        error

	// Of a group.
	tag     fabric.Tag
	reports *fabric.Completions
	// Of a piece.
	parent int32 // its group, or none
	offset uint64
	length uint64
	name   string
	result []byte // where the old value of an atomic goes, or nil

	loop   bool // of compare-swaps until one finds what it expects, see attempts
	off    uint64
	atomic fabric.Atomic
	attempts
}

// operations are a lane's operations with handles.
type operations struct {
	all  []operation // index+1 is the low half of a handle
	free int32       // list through next
}

// add returns a new operation of so many work requests.
func (t *operations) add(rank, parts int32) int32 {
	i := t.free
	if i == none {
		t.all = append(t.all, operation{generation: 1})
		i = int32(len(t.all) - 1)
	} else {
		t.free = t.all[i].next
	}
	o := &t.all[i]
	// Loops set what else they need; release has cleared the error.
	o.next, o.live, o.abandoned, o.loop, o.group, o.piece, o.parts, o.rank, o.old = none, true, false, false, false,
		false, parts, rank, 0
	return i
}

// release gives an operation back; its handle is spent.
func (t *operations) release(i int32) {
	o := &t.all[i]
	o.generation++
	o.live, o.err = false, nil
	o.next = t.free
	t.free = i
}

// abandon gives an operation back, at once or when its last work request ends. Its handle is spent.
func (t *operations) abandon(i int32) {
	if t.all[i].parts == 0 {
		t.release(i)
	} else {
		t.all[i].abandoned = true
	}
}

func (t *operations) handle(i int32) fabric.Handle {
	return fabric.Handle(t.all[i].generation)<<32 | fabric.Handle(i+1)
}

// find returns the operation of a handle, or none when it is spent or another lane's.
func (t *operations) find(h fabric.Handle) int32 {
	i := int64(uint32(h)) - 1
	if i < 0 || i >= int64(len(t.all)) {
		return none
	}
	if o := &t.all[i]; !o.live || o.abandoned || o.group || o.piece || o.generation != uint32(h>>32) {
		return none
	}
	return int32(i)
}
