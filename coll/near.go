package coll

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric/shm"
	"github.com/ibconduit/conduit/internal/peek"
)

// near is which members a team reaches by loads and stores, agreed on by all.
type near struct {
	all     bool     // each member reaches each
	mixed   bool     // hosts of several members, each in a row of ranks
	group   view     // the members of this host, by rank
	leaders []int    // the first of each host
	slots   [][]byte // of the group
	pids    []int    // of the processes that each reads the memory of, by member; nil where not all can
}

// nearby finds out, the first time, which members are mapped, in an all-gather. Mapped memory stays
// as long as the job.
func (o *op) nearby() (*near, error) {
	t := o.t
	p := o.pairs.channels()
	if p.near != nil {
		return p.near, nil
	}
	mapped, err := t.mappedSlots(o.ctx)
	if err != nil {
		return nil, err
	}
	first, count := t.me, uint32(0)
	for i := range mapped {
		if mapped[i] != nil {
			first, count = min(first, i), count+1
		}
	}
	mine := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(first)), count)
	all, err := o.rails.gatherEqual(mine)
	if err != nil {
		return nil, err
	}
	n := &near{group: view{list: []int{}}}
	sizes := map[int]uint32{}
	inRow, last := true, 0
	for i := range t.n {
		leader := int(binary.LittleEndian.Uint32(all[8*i:]))
		inRow = inRow && (i == 0 || leader == last || leader == i)
		last = leader
		if sizes[leader]++; leader == i {
			n.leaders = append(n.leaders, i)
		}
		if leader == first {
			if i == t.me {
				n.group.me = n.group.m
			}
			n.group.list, n.group.m = append(n.group.list, i), n.group.m+1
			n.slots = append(n.slots, mapped[i])
		}
	}
	whole := true // who shares a host reaches all of it
	for i := range t.n {
		whole = whole && sizes[int(binary.LittleEndian.Uint32(all[8*i:]))] == binary.LittleEndian.Uint32(all[8*i+4:])
	}
	n.all = whole && len(n.leaders) == 1
	n.mixed = whole && inRow && len(n.leaders) > 1 && len(n.leaders) < t.n
	if n.all {
		if err := n.tryReading(&o.rails); err != nil {
			return nil, err
		}
	}
	p.near = n
	return n, nil
}

// tryReading finds out whether the members may read each other's memory as the kernel copies it,
// which takes a right to trace and one name space of processes.
func (n *near) tryReading(o *rails) error {
	t := o.step.t
	nonce := new(uint64)
	*nonce = rand.Uint64()
	mine := binary.LittleEndian.AppendUint64(nil, uint64(os.Getpid()))
	mine = binary.LittleEndian.AppendUint64(mine, uint64(uintptr(unsafe.Pointer(nonce))))
	mine = binary.LittleEndian.AppendUint64(mine, *nonce)
	all, err := o.gatherEqual(mine)
	if err != nil {
		return err
	}
	pids, can := make([]int, t.n), byte(1)
	for i := range t.n {
		b := all[24*i:]
		pids[i] = int(binary.LittleEndian.Uint64(b))
		var read [8]byte
		if err := peek.Read(pids[i], binary.LittleEndian.Uint64(b[8:]), read[:]); err != nil ||
			binary.NativeEndian.Uint64(read[:]) != binary.LittleEndian.Uint64(b[16:]) {
			can = 0
		}
	}
	cans, err := o.gatherEqual([]byte{can})
	if err == nil && !slices.Contains(cans, 0) {
		n.pids = pids
	}
	runtime.KeepAlive(nonce)
	return err
}

// mappedSlots are the slots of the members that are mapped, nil for others.
func (t *membership) mappedSlots(ctx context.Context) ([][]byte, error) {
	m := t.shared
	if err := m.turns.lock(ctx); err != nil {
		return nil, err
	}
	defer m.turns.unlock()
	slots := make([][]byte, t.n) // of the team
	for i := range t.n {
		end := t.off + m.shape.slot
		if i == t.me {
			slots[i] = t.mem
		} else if b := m.lanes.To(t.Member(i)).Mapped(t.Member(i)); uint64(len(b)) >= end {
			slots[i] = b[t.off:end]
		}
	}
	return slots, nil
}

// signal counts a message to a member of the host, or to all others (noMember).
func (o *pairs) signal(near *near, to int) {
	t, p, g := o.step.t, o.made, near.group
	for i := range g.m {
		if i == g.me || to != noMember && i != to {
			continue
		}
		member := g.at(i)
		p.sent[member]++
		// A plain store, as of a lane (package internal/fabric/shm, order.go): an atomic one waits on
		// amd64 until all that was laid out has left the processor.
		shm.OrderStores()
		*word(near.slots[i], t.shared.shape.arrivals+8*uint64(t.me)) = o.pairWord(member)
	}
}

// signalled waits for that from all others of the host.
func (o *pairs) signalled(near *near) error {
	g := near.group
	for i := range g.m {
		if i == g.me {
			continue
		}
		if err := o.arrived(g.at(i)); err != nil {
			return err
		}
	}
	return nil
}
