package coll

import (
	"context"
	"fmt"
	"math"
)

// AllToAll gives every member a block of every other's src: block j of src goes to rank j, and
// block i of dst comes from rank i. All blocks are equally long on all members: len(src) and
// len(dst) are equal, and multiples of the number of members. dst and src must not overlap. It
// blocks until all members have called it, and fails as Team.Barrier does; dst then has any
// content.
func AllToAll[T any](ctx context.Context, on On, dst, src []T) error {
	d, err := allToAll(on, dst, src)
	if err != nil {
		return err
	}
	return do(ctx, on, KindAllToAll, 0, d, exchangeAll)
}

// StartAllToAll starts AllToAll, as Team.StartBarrier does a barrier.
func StartAllToAll[T any](ctx context.Context, on On, dst, src []T) *Pending {
	d, err := allToAll(on, dst, src)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindAllToAll, 0, d, exchangeAll)
}

// AllToAllV is AllToAll with blocks that have lengths of their own, in elements: dstCounts[i] of
// rank i, srcCounts[j] for rank j, one block behind the other. What a member sends another, and
// that one expects, must be equal: if not, one of the two finds a *MismatchError, which breaks the
// team. It blocks until all members have called it.
func AllToAllV[T any](ctx context.Context, on On, dst []T, dstCounts []int, src []T, srcCounts []int) error {
	d, err := allToAllV(on, dst, dstCounts, src, srcCounts)
	if err != nil {
		return err
	}
	return do(ctx, on, KindAllToAll, 0, d, exchangeAll)
}

// StartAllToAllV starts AllToAllV, as Team.StartBarrier does a barrier. The counts may be changed
// at once.
func StartAllToAllV[T any](ctx context.Context, on On, dst []T, dstCounts []int, src []T, srcCounts []int) *Pending {
	d, err := allToAllV(on, dst, dstCounts, src, srcCounts)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindAllToAll, 0, d, exchangeAll)
}

// AllGather gives every member the src of all, by rank. len(src) is equal on all members, and
// len(dst) is that times the members. Team.AllGather is for blobs of different lengths.
// dst and src must not overlap. It blocks until all members have called it, and fails as
// Team.Barrier does; dst then has any content.
func AllGather[T any](ctx context.Context, on On, dst, src []T) error {
	d, err := allGatherOf(on, dst, src)
	if err != nil {
		return err
	}
	return do(ctx, on, KindAllGather, 0, d, gatherAll)
}

// StartAllGather starts AllGather, as Team.StartBarrier does a barrier.
func StartAllGather[T any](ctx context.Context, on On, dst, src []T) *Pending {
	d, err := allGatherOf(on, dst, src)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindAllGather, 0, d, gatherAll)
}

// Scatter gives member i block i of root's src. dst is equally long on all members, and root's src
// is that times the members; src of the others is not looked at. It fails as Team.Barrier does. It
// is no barrier: on root it returns when src may be changed.
func Scatter[T any](ctx context.Context, on On, root int, dst, src []T) error {
	d, err := rooted(on, KindScatter, root, dst, nil, src, nil)
	if err != nil {
		return err
	}
	return do(ctx, on, KindScatter, root, d, scatter)
}

// StartScatter starts Scatter, as Team.StartBarrier does a barrier.
func StartScatter[T any](ctx context.Context, on On, root int, dst, src []T) *Pending {
	d, err := rooted(on, KindScatter, root, dst, nil, src, nil)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindScatter, root, d, scatter)
}

// ScatterV is Scatter with blocks that have lengths of their own: root's srcCounts has one for each
// member, in elements, and len(dst) is this member's. A difference breaks the team, with a
// *MismatchError.
func ScatterV[T any](ctx context.Context, on On, root int, dst, src []T, srcCounts []int) error {
	d, err := rooted(on, KindScatter, root, dst, nil, src, counted(srcCounts))
	if err != nil {
		return err
	}
	return do(ctx, on, KindScatter, root, d, scatter)
}

// StartScatterV starts ScatterV, as Team.StartBarrier does a barrier.
func StartScatterV[T any](ctx context.Context, on On, root int, dst, src []T, srcCounts []int) *Pending {
	d, err := rooted(on, KindScatter, root, dst, nil, src, counted(srcCounts))
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindScatter, root, d, scatter)
}

// Gather is the reverse of Scatter: root's dst gets the src of all members, by rank; dst of the
// others is not looked at. It is no barrier: on others than root it returns when src may be
// changed.
func Gather[T any](ctx context.Context, on On, root int, dst, src []T) error {
	d, err := rooted(on, KindGather, root, dst, nil, src, nil)
	if err != nil {
		return err
	}
	return do(ctx, on, KindGather, root, d, gather)
}

// StartGather starts Gather, as Team.StartBarrier does a barrier.
func StartGather[T any](ctx context.Context, on On, root int, dst, src []T) *Pending {
	d, err := rooted(on, KindGather, root, dst, nil, src, nil)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindGather, root, d, gather)
}

// GatherV is Gather with blocks that have lengths of their own: root's dstCounts has one for each
// member, in elements, and len(src) is this member's. A difference breaks the team, with a
// *MismatchError.
func GatherV[T any](ctx context.Context, on On, root int, dst []T, dstCounts []int, src []T) error {
	d, err := rooted(on, KindGather, root, dst, counted(dstCounts), src, nil)
	if err != nil {
		return err
	}
	return do(ctx, on, KindGather, root, d, gather)
}

// StartGatherV starts GatherV, as Team.StartBarrier does a barrier.
func StartGatherV[T any](ctx context.Context, on On, root int, dst []T, dstCounts []int, src []T) *Pending {
	d, err := rooted(on, KindGather, root, dst, counted(dstCounts), src, nil)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindGather, root, d, gather)
}

// counted are counts that are there, if only none.
func counted(counts []int) []int {
	if counts == nil {
		return []int{}
	}
	return counts
}

func allToAll[T any](on On, dst, src []T) (*payload, error) {
	t, _ := on.on()
	if len(dst) != len(src) || len(src)%t.n != 0 {
		return nil, fmt.Errorf("coll: %v: dst has %d elements and src %d: both need the same number, a multiple of the "+
			"%d members",
			KindAllToAll, len(dst), len(src), t.n)
	}
	return apart(KindAllToAll, dst, src, len(src)/t.n)
}

func allGatherOf[T any](on On, dst, src []T) (*payload, error) {
	t, _ := on.on()
	if len(src)*t.n != len(dst) {
		return nil, fmt.Errorf("coll: %v: dst has %d elements, want %d of each of %d members", KindAllGather, len(dst),
			len(src), t.n)
	}
	return apart(KindAllGather, dst, src, len(src))
}

// apart makes a payload of memories that must not overlap; each is the elements of a block.
func apart[T any](k Kind, dst, src []T, each int) (*payload, error) {
	d, err := payloadOf[T](k)
	if err != nil {
		return nil, err
	}
	d.each = each * d.size
	d.dst, d.src = blocks{mem: bytesOf(dst), each: d.each}, blocks{mem: bytesOf(src), each: d.each}
	if overlap(d.dst.mem, d.src.mem) {
		d.release()
		return nil, fmt.Errorf("coll: %v: dst and src overlap", k)
	}
	return d, nil
}

func allToAllV[T any](on On, dst []T, dstCounts []int, src []T, srcCounts []int) (*payload, error) {
	d, err := apart(KindAllToAll, dst, src, 0)
	if err != nil {
		return nil, err
	}
	t, _ := on.on()
	d.varies = true
	if d.dst.at, err = d.place(KindAllToAll, "dst", t.n, dstCounts, len(dst), &d.dstAt); err == nil {
		d.src.at, err = d.place(KindAllToAll, "src", t.n, srcCounts, len(src), &d.srcAt)
	}
	if err == nil && len(d.dst.of(t.me)) != len(d.src.of(t.me)) {
		err = fmt.Errorf("coll: %v: this rank, %d, sends itself %d elements and expects %d", KindAllToAll, t.me,
			srcCounts[t.me], dstCounts[t.me])
	}
	if err != nil {
		d.release()
		return nil, err
	}
	return d, nil
}

// place checks counts of elements, and returns where blocks begin, in bytes, and where the last one
// ends, in memory that is kept for another time.
func (d *payload) place(k Kind, what string, members int, counts []int, elements int, kept *[]int) ([]int, error) {
	if len(counts) != members {
		return nil, fmt.Errorf("coll: %v: %d counts of %s, want one for each of %d members", k, len(counts), what, members)
	}
	at, sum := append((*kept)[:0], 0), 0
	for i, c := range counts {
		if c < 0 || c > math.MaxInt-sum {
			return nil, fmt.Errorf("coll: %v: count %d of %s is %d, want 0 to what is left of %d elements", k, i, what, c,
				elements)
		}
		sum += c
		at = append(at, sum*d.size)
	}
	*kept = at
	if sum != elements {
		return nil, fmt.Errorf("coll: %v: the counts of %s are %d elements, and it has %d: they must be equal", k, what,
			sum, elements)
	}
	return at, nil
}

// rooted is a scatter's or a gather's payload. dstCounts or srcCounts are root's; nil: all blocks
// are equal.
func rooted[T any](on On, k Kind, root int, dst []T, dstCounts []int, src []T, srcCounts []int) (*payload, error) {
	if err := checkRoot(on, k, root); err != nil {
		return nil, err
	}
	d, err := payloadOf[T](k)
	if err != nil {
		return nil, err
	}
	t, _ := on.on()
	d.dst.mem, d.src.mem = bytesOf(dst), bytesOf(src)
	d.varies = dstCounts != nil || srcCounts != nil
	all, one, counts, length, name, kept := &d.src, &d.dst, srcCounts, len(src), "src", &d.srcAt
	if k == KindGather {
		all, one, counts, length, name, kept = &d.dst, &d.src, dstCounts, len(dst), "dst", &d.dstAt
	}
	each, whole := len(one.mem), len(all.mem)
	if !d.varies {
		d.each, all.each = each, each
	}
	switch {
	case t.me != root:
		*all = blocks{}
		return d, nil
	case d.varies:
		if all.at, err = d.place(k, name, t.n, counts, length, kept); err == nil && len(all.of(root)) != each {
			err = fmt.Errorf("coll: %v: root, %d, has a block of %d bytes for itself, and memory for %d", k, root,
				len(all.of(root)), each)
		}
	case each*t.n != whole:
		err = fmt.Errorf("coll: %v: %s of root has %d bytes, want %d for each of %d members", k, name, whole, each, t.n)
	}
	if err == nil && overlap(d.dst.mem, d.src.mem) {
		err = fmt.Errorf("coll: %v: dst and src overlap", k)
	}
	if err != nil {
		d.release()
		return nil, err
	}
	return d, nil
}
