package bench

import "github.com/ibconduit/conduit"

// blockName is the function that blocks come by.
const blockName = "ft.block"

// transpose has the lines of all parts lie along another axis, in another array: blocks go between
// the parts of one i (ftGrid). before makes a part of this rank ready, after is called when one has
// all of its blocks. Nobody reads from is read any more when it returns.
func (f *FT) transpose(to int, toAxis axis, from int, fromAxis axis, before, after func(l int)) error {
	f.phase++
	for l := range f.p.Parts {
		before(l)
		f.x.reached(l, f.phase)
	}
	t := turning{FT: f, to: to, from: from, toAxis: toAxis, fromAxis: fromAxis, after: after}
	exchange := t.fetch
	if f.p.Arm == ArmNormal {
		exchange = t.send
	}
	if err := exchange(); err != nil {
		return err
	}
	return f.x.w.Barrier(f.x.ctx)
}

// turning is one transpose.
type turning struct {
	*FT
	to, from         int
	toAxis, fromAxis axis
	after            func(l int)
}

// arrays of a phase, and the axes of its lines: the first is forwards.
func arrays(phase int) (from int, fromAxis, toAxis axis) {
	if phase == 1 {
		return 2, yAxis, zAxis
	}
	return 1, zAxis, yAxis
}

// partners are the parts that exchange blocks with one, those behind it first.
func (f *FT) partners(v int) []int {
	all := make([]int, f.g.p2)
	for k := range all {
		all[k] = v%f.g.p1 + (v/f.g.p1+k)%f.g.p2*f.g.p1
	}
	return all
}

func (f *FT) rankOf(v int) int { return v / f.p.Parts }

// local copies the blocks that a part gets of others of this rank, and returns the other parts that
// it gets blocks of.
func (t *turning) local(l int) (remote []int) {
	w := t.first() + l
	for _, v := range t.partners(w) {
		if t.rankOf(v) == t.me {
			t.g.across(t.mine(t.to, l), t.toAxis, w, t.mine(t.from, v-t.first()), t.fromAxis, v)
		} else {
			remote = append(remote, v)
		}
	}
	return remote
}

// fetch fetches blocks part after part.
func (t *turning) fetch() error {
	per := t.g.p2 * (t.ranks - 1) / t.ranks // blocks that each part fetches
	if per == 0 {
		for l := range t.p.Parts {
			t.local(l)
			t.after(l)
		}
		return nil
	}
	var remote []int // of the part that is fetched for
	from, blocks := make([]int, t.p.Parts*per), make([]*conduit.Fetched[complex128], t.p.Parts*per)
	missing := make([]int, t.p.Parts)
	return t.x.ahead(len(blocks), 1, func(k int, set *conduit.FetchSet) {
		l := k / per
		if k%per == 0 {
			remote = t.local(l)
			missing[l] = per
		}
		v := remote[k%per]
		from[k] = v
		blocks[k] = conduit.FetchFrom[complex128](set, t.rankOf(v), blockName, t.g.block(), uint64(v), uint64(t.first()+l),
			uint64(t.phase))
	}, func(k int) {
		l := k / per
		t.g.unpack(t.mine(t.to, l), blocks[k].Data(), t.fromAxis, from[k], t.toAxis, t.first()+l)
		if missing[l]--; missing[l] == 0 {
			t.after(l)
		}
	})
}

// send packs and sends all blocks, and unpacks when all have come.
func (t *turning) send() error {
	var out []parcel
	for l := range t.p.Parts {
		v := t.first() + l
		for _, w := range t.partners(v) {
			if t.rankOf(w) != t.me {
				out = append(out, parcel{t.rankOf(w), w, v})
			}
		}
	}
	came, err := t.x.trade(out, t.phase, func(buf []byte, n int) { t.x.pack(buf, out[n].b, out[n].a, t.phase) })
	if err != nil {
		return err
	}
	for l := range t.p.Parts {
		w := t.first() + l
		for _, v := range t.local(l) {
			p := came[[2]int{w, v}]
			t.g.unpack(t.mine(t.to, l), numbers(p.Data()), t.fromAxis, v, t.toAxis, w)
			p.Release()
		}
		t.after(l)
	}
	return nil
}
