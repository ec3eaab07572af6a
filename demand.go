package conduit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/ranklist"
	"github.com/ibconduit/conduit/segment"
)

// demand is what every rank sends every other second, when it knows which ranks shared memory
// reaches and before it maps its segment: whether it needs verbs, and what it is going to take of
// its host's memory without verbs and with them. So all ranks know the size of each segment, and
// whether a host's fit there together, before any memory is taken.
type demand struct {
	verbs bool
	pools []segment.Pool // of both claims
	claim [2]claim       // without verbs, with them
}

// claim is what a rank takes. The bytes of one that cannot take part are 0.
type claim struct {
	refused string // why there is no such segment
	huge    uint64 // the segment's bytes on huge pages, 0: it is on others
	base    uint64 // on other pages, 0: it needs huge ones
	beside  uint64 // bytes that it takes in addition: the budget, pinned buffers
	firm    bool   // the segment takes all of it: it was asked for, or is pinned
}

func (c *claim) numbers() []*uint64 { return []*uint64{&c.huge, &c.base, &c.beside} }

// maxPools bounds what a demand makes this rank keep; maxGroup what of a group's path travels.
const (
	maxPools = 64
	maxGroup = 128
)

// The wire format:
//
//	1 byte    1 if the rank needs verbs
//	uvarint   number of pools, then for each of them
//	          1 byte kind; uvarint id, room, length of path; path
//	twice     1 byte 1 if firm; uvarint huge, base, beside, length of refused; refused
func (d *demand) encode() []byte {
	b := []byte{bit(d.verbs)}
	text := func(s string, most int) {
		s = s[:min(len(s), most)]
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	b = binary.AppendUvarint(b, uint64(len(d.pools)))
	for _, p := range d.pools {
		b = append(b, byte(p.Kind))
		b = binary.AppendUvarint(binary.AppendUvarint(b, p.ID), p.Room)
		text(p.Path, maxGroup)
	}
	for i := range d.claim {
		c := &d.claim[i]
		b = append(b, bit(c.firm))
		for _, n := range c.numbers() {
			b = binary.AppendUvarint(b, *n)
		}
		text(c.refused, maxReason)
	}
	return b
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// decodeDemand reads a demand, which may be anything.
func decodeDemand(b []byte) (d demand, err error) {
	r := demandReader{b: b}
	d.verbs = r.bit()
	n := r.number()
	if n > maxPools {
		return d, fmt.Errorf("malformed demand with %d pools", n)
	}
	for range n {
		p := segment.Pool{Kind: segment.PoolKind(r.byte()), ID: r.number(), Room: r.number(), Path: r.text()}
		if !r.bad && !p.Kind.Valid() {
			return d, fmt.Errorf("malformed demand with a pool of kind %d", p.Kind)
		}
		d.pools = append(d.pools, p)
	}
	for i := range d.claim {
		c := &d.claim[i]
		c.firm = r.bit()
		for _, n := range c.numbers() {
			*n = min(r.number(), 1<<62/MaxRanks) // sums do not overflow
		}
		c.refused = r.text()
	}
	if r.bad || len(r.b) > 0 {
		return demand{}, fmt.Errorf("malformed demand of %d bytes", len(b))
	}
	return d, nil
}

type demandReader struct {
	b   []byte
	bad bool
}

func (r *demandReader) take(n uint64) []byte {
	if r.bad = r.bad || n > uint64(len(r.b)); r.bad {
		return make([]byte, min(n, 1))
	}
	t := r.b[:n]
	r.b = r.b[n:]
	return t
}

func (r *demandReader) byte() byte { return r.take(1)[0] }

func (r *demandReader) bit() bool {
	v := r.byte()
	r.bad = r.bad || v > 1
	return v == 1
}

func (r *demandReader) number() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *demandReader) text() string {
	return errtext.Printable(r.take(min(r.number(), maxReason)), maxReason)
}

// segmentConfig is the configuration of this rank's segment.
func (j *joining) segmentConfig(verbs bool, buffers uint64) segment.Config {
	c := segment.Config{
		Size:      j.cfg.SegmentSize,
		Share:     j.cfg.SegmentShare,
		Layout:    j.layout,
		HugePages: j.cfg.HugePages,
		Shared:    j.cfg.Fabric != FabricIBV,
		Locked:    verbs,
	}
	if verbs {
		c.Buffers = buffers
	}
	return c
}

// LockedMemory is how many bytes each rank of a job of so many locks where it needs verbs: its
// segment with the library's part, on base pages, and the buffers of lanes and endpoints. Join
// compares it with RLIMIT_MEMLOCK. Of a SegmentShare, which follows the limit, it is the least.
func (c Config) LockedMemory(ranks int) (uint64, error) {
	c, err := c.withDefaults()
	var n needs
	if err == nil {
		n, err = c.needs()
	}
	if err != nil {
		return 0, err
	}
	j := &joining{Job: &Job{cfg: c, needs: n, messages: messagesOf(&c), library: libraryOf(&c, n.handlers)}}
	if j.layout, err = n.layout(ranks); err != nil {
		return 0, err
	}
	buffers, err := pinnedBuffers(j.Job)
	if err != nil {
		return 0, err
	}
	locked := j.segmentConfig(true, buffers)
	return locked.Locks()
}

// agree is the second exchange: it finds out whether any rank needs verbs, and plans this rank's
// segment. All ranks come to the same verdict, since all have the same demands.
func (j *joining) agree(ctx context.Context) (verbs bool, err error) {
	buffers, err := pinnedBuffers(j.Job)
	if err != nil {
		return false, err
	}
	mine := demand{verbs: j.cfg.Fabric == FabricIBV || j.far >= 0}
	var plans [2]*segment.Plan
	var refused [2]error
	for i := range plans {
		c := j.segmentConfig(i == 1, buffers)
		own := &mine.claim[i]
		if plans[i], refused[i] = segment.Prepare(c); refused[i] != nil {
			own.refused = refused[i].Error()
			continue
		}
		mine.pools = plans[i].Pools()
		*own = claim{huge: plans[i].Huge(), base: plans[i].Base(), beside: j.beside() + c.Buffers,
			firm: c.Locked || !j.cfg.defaultSize}
	}
	mine.pools = mine.pools[:min(len(mine.pools), maxPools)]
	blobs, err := j.boot.Exchange(ctx, mine.encode())
	if err != nil {
		return false, err
	}
	all := make([]demand, j.size)
	for r, b := range blobs {
		if all[r], err = decodeDemand(b); err != nil {
			return false, fmt.Errorf("rank %d: %w", r, err)
		}
		verbs = verbs || all[r].verbs
	}
	which := int(bit(verbs))
	if err := refusals(all, which, j.rank, refused[which]); err != nil {
		return verbs, err
	}
	j.plan = plans[which]
	verdict := share(all, which)
	if verdict.base[j.rank] {
		j.plan.WithoutHugePages("those that are free do not suffice for all ranks of the host")
	}
	for _, w := range verdict.warnings {
		if w.ranks[0] == j.rank {
			j.cfg.Logger.Warn("segments of a host", "of", ranklist.Text(w.ranks), "warning", w.error())
		}
	}
	return verbs, verdict.err
}

// beside is how many bytes this rank may take for a time in addition to its segment.
func (j *joining) beside() uint64 {
	if b := j.memory.Budget(); b != nil {
		return uint64(b.Least())
	}
	return 0
}

// refusals names the ranks that cannot have their segments. own is why this one cannot.
func refusals(all []demand, which, me int, own error) error {
	var ranks []int
	for r := range all {
		if all[r].claim[which].refused != "" {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		return nil
	}
	var errs []error
	for len(ranks) > 0 { // those with one reason together
		reason := all[ranks[0]].claim[which].refused
		same := slices.DeleteFunc(slices.Clone(ranks), func(r int) bool { return all[r].claim[which].refused != reason })
		ranks = slices.DeleteFunc(ranks, func(r int) bool { return slices.Contains(same, r) })
		err := errors.New(reason)
		if slices.Contains(same, me) {
			err = own
		}
		if len(all) > 1 {
			err = fmt.Errorf("%s cannot take part: %w", ranklist.Text(same), err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// account is what ranks take of one pool.
type account struct {
	segment.Pool
	ranks            []int
	segments, beside uint64
	firm             uint64 // of segments
}

func (a *account) add(rank int, segment, beside uint64, firm bool) {
	a.ranks = append(a.ranks, rank)
	a.segments, a.beside = a.segments+segment, a.beside+beside
	if firm {
		a.firm += segment
	}
}

// error is the error of more than the pool has.
func (a *account) error() error {
	return fmt.Errorf("%s together: %w", ranklist.Text(a.ranks), &segment.LimitError{
		Asked: a.segments + a.beside, Limit: a.Room, Which: a.Which(), Remedy: a.Remedy(),
		Regions: []segment.Region{{Name: "segments", Size: a.segments}, {Name: "budgets and pinned buffers", Size: a.beside}},
	})
}

// verdict is on what ranks take together.
type verdict struct {
	base     []bool // by rank: it is to use base pages, though it would have huge ones
	warnings []*account
	err      error
}

// share adds up what the ranks take of each pool. Huge pages go to ranks that need them first, then
// to the others in their order, as far as they suffice. More than another pool has is an
// error, unless it is only the address space of segments of the default size, which take
// memory as it is touched.
func share(all []demand, which int) (v verdict) {
	v.base = make([]bool, len(all))
	accounts := map[uint64]*account{}
	var order []*account
	for r := range all {
		for _, p := range all[r].pools {
			a := accounts[p.ID]
			if a == nil {
				a = &account{Pool: p}
				accounts[p.ID] = a
				order = append(order, a)
			}
			a.Room = min(a.Room, p.Room)
		}
	}
	each := func(kind func(segment.PoolKind) bool, do func(r int, c *claim, a *account)) {
		for r := range all {
			for _, p := range all[r].pools {
				if a := accounts[p.ID]; kind(p.Kind) {
					do(r, &all[r].claim[which], a)
				}
			}
		}
	}
	huge := func(k segment.PoolKind) bool { return k == segment.PoolHuge }
	for _, needed := range []bool{true, false} {
		each(huge, func(r int, c *claim, a *account) {
			switch {
			case c.huge == 0 || (c.base == 0) != needed:
			case needed || a.segments+c.huge <= a.Room:
				a.add(r, c.huge, 0, true)
			default:
				v.base[r] = true
			}
		})
	}
	each(func(k segment.PoolKind) bool { return !huge(k) }, func(r int, c *claim, a *account) {
		n := c.base
		if c.huge > 0 && !v.base[r] {
			n = 0
		}
		a.add(r, n, c.beside, c.firm)
	})
	for _, a := range order {
		switch {
		case a.firm+a.beside > a.Room:
			v.err = errors.Join(v.err, a.error())
		case a.segments+a.beside > a.Room:
			v.warnings = append(v.warnings, a)
		}
	}
	return v
}
