package cache

// Readahead. A get that missed, and the first get of a line that was fetched ahead, is held against
// a table of streams: requests to a rank at equal distances, up or down. A stream whose distance
// has come twice in a row has its next requests fetched ahead, in a window that doubles as it goes
// on, up to what the slots hold. How much may be fetched for nothing is bounded by what was not
// (thrifty).

// stream is requests at equal distances.
type stream struct {
	rank   int
	first  uint64 // offset of the request that began it
	last   uint64 // offset of the last request
	stride int64  // in bytes; a line, up or down, for what goes through lines in order
	next   int64  // offset of the first stride that was not begun
	votes  int    // for the stride, less those against it since (Boyer and Moore, as in Leap, ATC 2020)
	window int    // of strides ahead of the last request
	used   uint64 // when it was last, in requests held against the table
	epoch  uint64 // of the cache then
	end    int64  // where it is taken to end; of far where the stream before did. 0: not known
}

const (
	streams     = 12      // stencils have an array for each axis, and rows of several planes
	confirmed   = 2       // votes
	firstWindow = 2       // strides
	partAhead   = 4       // of how many lines that a stream went through one is fetched ahead
	farthest    = 1 << 20 // bytes between two requests of a stream
	// wasteShift is the part of what is fetched ahead that may be for nothing: 1/32. Up to 1/8 it is
	// taken for what lies behind the ends of streams, and windows stay small. So many lines may be
	// before anything is known, and one in tryEvery of the refused is tried all the same.
	wasteShift  = 5
	looseShift  = 3
	wasteFirst  = 128
	tryEvery    = 64
	smallWindow = 8       // strides
	skips       = 8       // strides that a stream may go on by: what lies between was a hit
	halveAt     = 1 << 14 // lines that are remembered
)

// readahead tells the table of a request of n bytes, and begins to fetch what will be asked for.
func (c *reader) readahead(rank int, off, n uint64) {
	p := c.pages
	hint := p.hintAt(rank, off)
	if c.usage.maxWindow == 0 || hint == Random {
		return
	}
	c.usage.clock++
	s := c.usage.streamOf(rank, off)
	line := int64(p.lineMask + 1)
	if s.used = c.usage.clock; hint == Sequential && s.votes < confirmed {
		s.stride, s.votes = line, confirmed
	}
	if s.votes < confirmed {
		return
	}
	small := !c.usage.thrifty(wasteShift)
	if small && !c.usage.thrifty(looseShift) {
		if c.usage.refused++; c.usage.refused%tryEvery != 0 {
			return
		}
		s.window = 0 // a small one, to see
	}
	steps := abs(s.stride) == line // from line to line
	from := int64(off) + s.stride
	if steps {
		from = int64(off&^p.lineMask) + s.stride
		n = uint64(line)
	}
	ahead := (s.next - from) / s.stride
	if ahead < 0 || ahead > int64(s.window) {
		s.next, ahead = from, 0
	}
	if ahead > int64(s.window)/2 {
		return // the next request will do
	}
	most := c.usage.maxWindow
	if page := int64(p.cfg.PageSize); abs(s.stride) < page { // which has several strides
		most *= int(page / abs(s.stride))
	}
	if small {
		most = min(most, smallWindow)
	}
	if steps && hint != Sequential { // where it ends as much as that is for nothing
		most = min(most, max(int(abs(int64(off-s.first))/line)/partAhead, firstWindow))
	}
	s.window = min(max(2*s.window, firstWindow), most)
	until := int64(s.window)
	if s.end != 0 && !steps {
		until = min(until, (s.end+s.stride/2-int64(off))/s.stride)
	}
	for k := int64(1); ahead < until; ahead += k {
		if steps {
			k = until - ahead
		}
		if !c.fetchStrides(s, k, n) {
			break
		}
		s.next += k * s.stride
	}
	_ = c.net.launch(c.net.route[rank]) // what fails will fail again when it is asked for
}

// streamOf returns the stream of a request, which it adds: one that goes from line to line, or else
// one with the request's distance. What belongs to neither begins a stream, and has a vote for the
// distance to the one before.
func (c *usage) streamOf(rank int, off uint64) *stream {
	p := c.pages
	line := int64(p.lineMask + 1)
	idle, strided := 0, -1
	for i := range c.streams {
		s := &c.streams[i]
		if s.used < c.streams[idle].used {
			idle = i
		}
		if s.used == 0 || s.rank != rank {
			continue
		}
		c.renew(s, off)
		d := int64(off - s.last)
		if s.votes >= confirmed && abs(s.stride) > line && d%s.stride == 0 && d/s.stride > 0 && d/s.stride <= skips {
			strided = i
		}
		if d == 0 || abs(d) > 2*line || abs(s.stride) > line {
			continue
		}
		if d = line; off < s.last {
			d = -line
		}
		if s.vote(d); s.votes == 1 && s.window == 0 {
			s.first = off
		}
		s.last = off
		return s
	}
	if strided >= 0 {
		c.streams[strided].last = off
		return &c.streams[strided]
	}
	v, s := &c.far, &c.streams[idle]
	*s = stream{rank: rank, first: off, last: off, epoch: p.epoch}
	c.renew(v, off)
	if d := int64(off - v.last); v.rank == rank && abs(d) > 2*line && abs(d) <= farthest {
		if v.vote(d); v.votes > confirmed && d == v.stride {
			s.stride, s.votes = d, confirmed
			c.learn(s)
		}
	}
	v.rank, v.last = rank, off
	return s
}

// renew has a stream begin anew after an acquire, which makes old what was fetched ahead: one that
// has an acquire between its requests is none. What survives an acquire does not care.
func (c *usage) renew(s *stream, off uint64) {
	p := c.pages
	if s.epoch == p.epoch {
		return
	}
	s.epoch = p.epoch
	if h := p.hintAt(s.rank, off); h != ReadOnly && h != Private {
		s.votes, s.window, s.next = 0, 0, 0
	}
}

// learn has a stream that was found end where the two before it with its stride did, as the walks
// along the columns of a matrix do, so that nothing behind that is fetched.
func (c *usage) learn(s *stream) {
	var before *stream
	for i := range c.streams {
		o := &c.streams[i]
		if o != s && o.votes >= confirmed && o.rank == s.rank && o.stride == s.stride && (before == nil || o.used > before.used) {
			before = o
		}
	}
	if before == nil {
		return
	}
	end := int64(before.last)
	if d := end - c.far.end; c.far.end != 0 && abs(d) <= skips*abs(s.stride) { // the last ones may have been hits
		if s.end = end; d^s.stride < 0 {
			s.end = c.far.end
		}
	}
	c.far.end = end
}

// vote counts a distance.
func (s *stream) vote(d int64) {
	switch {
	case d == s.stride:
		s.votes = min(s.votes+1, 2*confirmed)
	case s.votes > 0:
		s.votes--
	default:
		s.stride, s.votes, s.window, s.next = d, 1, 0, 0
	}
}

// fetchStrides begins to fetch n bytes at each of the next k strides of a stream, which follow each
// other if k > 1, and reports whether there was room and the rank has them.
func (c *reader) fetchStrides(s *stream, k int64, n uint64) bool {
	p := c.pages
	from := s.next
	if s.stride < 0 {
		from += (k - 1) * s.stride
	}
	n = n + uint64(k-1)*(p.lineMask+1)
	if from < 0 {
		if uint64(-from) >= n {
			return false
		}
		n, from = n-uint64(-from), 0
	}
	if uint64(from) >= p.sizes[s.rank] {
		return false
	}
	end := (uint64(from) + n + p.lineMask) &^ p.lineMask // whole lines are fetched anyway
	return c.aheadOf(s.rank, uint64(from), int(end-uint64(from)))
}

// thrifty reports whether what was fetched for nothing is at most 1/2^shift of what was used.
func (c *usage) thrifty(shift uint8) bool {
	p := c.pages
	if p.useful+p.wasted > halveAt {
		p.useful, p.wasted = p.useful/2, p.wasted/2
	}
	return p.wasted <= p.useful>>(shift&63)+wasteFirst
}

func abs(d int64) int64 {
	if d < 0 {
		return -d
	}
	return d
}
