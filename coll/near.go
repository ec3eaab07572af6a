package coll

import (
	"encoding/binary"
)

// near is which members a team reaches by loads and stores, agreed on by all.
type near struct {
	all     bool     // each member reaches each
	mixed   bool     // hosts of several members, each in a row of ranks
	group   view     // the members of this host, by rank
	leaders []int    // the first of each host
	slots   [][]byte // of the group
}

// nearby finds out, the first time, who is mapped, in an all-gather. Mapped memory stays as long as
// the job.
func (o *op) nearby() (*near, error) {
	t := o.t
	p := t.channels()
	if p.near != nil {
		return p.near, nil
	}
	mapped, err := o.mappedSlots()
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
	all, err := o.gatherEqual(mine)
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
	p.near = n
	return n, nil
}

// mappedSlots are the slots of the members that are mapped, nil for others.
func (o *op) mappedSlots() ([][]byte, error) {
	t, m := o.t, o.t.teams
	if err := m.shared.lock(o.ctx); err != nil {
		return nil, err
	}
	defer m.shared.unlock()
	slots := make([][]byte, t.n)
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
