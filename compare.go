package conduit

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/segment"
)

// compareLayouts refuses ranks with regions that lie elsewhere: the first one that differs and rank
// 0 send their layouts, so that every rank can name the region.
func (j *joining) compareLayouts(ctx context.Context, all []hello) error {
	odd := slices.IndexFunc(all, func(h hello) bool { return h.layout != all[0].layout })
	if odd < 0 {
		return nil
	}
	lists, err := j.exchangeOf(ctx, odd, []byte(j.layout.String()))
	if err != nil {
		return err
	}
	region, other := segment.FirstDifference(string(lists[0]), string(lists[odd]))
	return fmt.Errorf("rank %d lays out its segment otherwise than rank 0, which has %s; rank %d has %s: start the "+
		"same program with the same configuration on all ranks",
		odd, errtext.Printable([]byte(region), maxReason), odd, errtext.Printable([]byte(other), maxReason))
}

// exchangeOf has rank 0 and a rank that differs from it send what they differ in.
func (j *joining) exchangeOf(ctx context.Context, odd int, mine []byte) ([][]byte, error) {
	if j.rank != 0 && j.rank != odd {
		mine = nil
	}
	return j.boot.Exchange(ctx, mine)
}

// compareHandlers refuses ranks that would not understand each other's messages of one kind. All
// come to the same verdict, since all compare the same answers with rank 0's.
func (j *joining) compareHandlers(ctx context.Context, s *endpoints, all []hello, of func(*hello) *protocol) error {
	first := of(&all[0])
	for r := range all {
		switch a := of(&all[r]); {
		case (a.handlers == 0) != (first.handlers == 0):
			return fmt.Errorf("rank %d has %d handlers of %s, rank 0 has %d: %s", r, a.handlers, s.words.kind, first.handlers,
				s.words.remedy)
		case a.hash != first.hash:
			return j.nameDifference(ctx, s.table, r, all, of)
		case a.endpoints != first.endpoints:
			return fmt.Errorf("rank %d was configured with %d message endpoints, rank 0 with %d: they must be equal "+
				"(Config.MessageEndpoints, IBCONDUIT_MESSAGE_ENDPOINTS; %s)",
				r, a.endpoints, first.endpoints, setWhereHostsDiffer)
		default:
			if err := s.compareTerms(r, a.terms, first.terms); err != nil {
				return err
			}
		}
	}
	return nil
}

// nameDifference finds a handler in which a rank differs from rank 0: both send their lists.
func (j *joining) nameDifference(ctx context.Context, table *am.Table, odd int, all []hello,
	of func(*hello) *protocol) error {
	lists, err := j.exchangeOf(ctx, odd, table.Encode())
	if err != nil {
		return err
	}
	other := odd
	if of(&all[j.rank]).hash != of(&all[0]).hash {
		other = 0
	}
	if err := table.Check(other, lists[other]); err != nil {
		return err
	}
	return fmt.Errorf("the handlers of rank %d have another hash than those of rank 0, and the same names", odd)
}

func (s *endpoints) compareTerms(rank int, terms, first []uint64) error {
	if len(terms) != len(first) {
		return fmt.Errorf("rank %d has %d parameters of messages, rank 0 has %d: mixed binaries", rank, len(terms),
			len(first))
	}
	names, err := s.params.Terms()
	if err != nil {
		return err
	}
	for i := range terms {
		if terms[i] == first[i] {
			continue
		}
		name := fmt.Sprintf("parameter %d", i)
		if i < len(names) {
			name = names[i].Name
		}
		return fmt.Errorf("rank %d was configured with %s.%s %d, rank 0 with %d: they must be equal", rank, s.words.params,
			name, terms[i], first[i])
	}
	return nil
}

// compareShared refuses ranks with shared data that lie elsewhere. Compared with rank 0 so that
// every rank prints the same.
func (j *joining) compareShared(ctx context.Context, all []hello) error {
	first := &all[0]
	for r := range all {
		switch h := &all[r]; {
		case h.heap != first.heap:
			return fmt.Errorf("rank %d was configured with a heap of %d bytes, rank 0 with %d (-1: all): they must be "+
				"equal (Config.HeapSize, IBCONDUIT_HEAP_SIZE)",
				r, int64(h.heap), int64(first.heap))
		case h.symm != first.symm:
			return fmt.Errorf("rank %d was configured with a symmetric heap of %d bytes, rank 0 with %d: they must be "+
				"equal (Config.SymmetricSize, IBCONDUIT_SYMMETRIC_SIZE)",
				r, h.symm, first.symm)
		}
	}
	odd := slices.IndexFunc(all, func(h hello) bool { return h.shared != first.shared })
	if odd < 0 {
		return nil
	}
	lists, err := j.exchangeOf(ctx, odd, []byte(j.cfg.Shared.arrays.Text()))
	if err != nil {
		return err
	}
	have, other := segment.FirstDifference(string(lists[0]), string(lists[odd]))
	return fmt.Errorf("rank %d has other shared arrays than rank 0, which has %s; rank %d has %s: start the same "+
		"program on all ranks, and register before Join (Config.Shared)",
		odd, orNothing(have), odd, orNothing(other))
}

// orNothing is a line of another rank's, the last of which is empty.
func orNothing(line string) string {
	return cmp.Or(errtext.Printable([]byte(line), maxReason), "nothing")
}
