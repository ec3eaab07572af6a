package coll

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Each member has in its slot, for others to read, which operation it is in or was in last. One
// that has waited for too long reads there which members it waits for: by the messages that it
// lacks it knows its neighbours only, which may themselves wait for another.

// position is that word: generation (24 bits), kind (8), number (32).
func position(generation uint32, k Kind, number uint64) uint64 {
	return uint64(generation)<<40 | uint64(k)<<32 | number&(1<<32-1)
}

// Limits of the members that are read and named.
const (
	lookTime   = 100 * time.Millisecond // for all members together
	namedLimit = 8
)

// awaited says which members have not come to an operation that this one has given up, and where
// they are: "" where it had not waited until its context ended, and where none is known.
func awaited(ctx context.Context, o *op) string {
	if ctx.Err() == nil {
		return ""
	}
	t := o.t
	ctx, cancel := t.shared.env.Host().WithTimeout(context.WithoutCancel(ctx), lookTime)
	defer cancel()
	var late []string
	for i := range t.n {
		rank := t.Member(i)
		if i == t.me || t.shared.env.Down(rank) != nil {
			continue
		}
		w, err := t.position(ctx, rank)
		if err != nil {
			break // its time is over
		}
		if w>>40 != uint64(t.generation) {
			late = append(late, fmt.Sprintf("rank %d, in no operation of the team yet", rank))
			continue
		}
		if int32(uint32(w)-uint32(o.number)) >= 0 {
			continue
		}
		late = append(late, fmt.Sprintf("rank %d, last in its %v, number %d", rank, Kind(w>>32), uint32(w)))
	}
	if len(late) == 0 {
		return ""
	}
	if more := len(late) - namedLimit; more > 0 {
		late = append(late[:namedLimit], fmt.Sprintf("%d more", more))
	}
	return "; it waited for " + strings.Join(late, "; ")
}

// position reads the word of a member.
func (t *membership) position(ctx context.Context, rank int) (uint64, error) {
	m := t.shared
	if err := m.turns.lock(ctx); err != nil {
		return 0, err
	}
	defer m.turns.unlock()
	if slot := m.near(rank, t.off); slot != nil {
		return atomic.LoadUint64(word(slot, whereWord)), nil
	}
	lane, w := m.lanes.To(rank), make([]byte, 8)
	h, err := lane.Get(rank, t.off+whereWord, w, fabric.Blocking)
	if err == nil && h != fabric.Done {
		if _, err = lane.Wait(ctx, h); err != nil {
			lane.Abandon(h)
		}
	}
	return binary.NativeEndian.Uint64(w), err
}
