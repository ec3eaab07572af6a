package cache_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// location is bytes of a rank's segment.
type location struct {
	rank int
	off  uint64
	n    int
}

// part is n of its bytes, from the i-th on.
func (l location) part(i, n int) location {
	l.off, l.n = l.off+uint64(i), n
	return l
}

func (l location) String() string {
	return fmt.Sprintf("%d bytes at %d of rank %d", l.n, l.off, l.rank)
}

// Bytes of data have versions. Version 0 is there at start. At each place a version is another
// value, and places differ, so that a byte that is out of place shows.
func encode(rank int, off uint64, version byte) byte { return mixed(rank, off) + version*37 }
func decode(rank int, off uint64, value byte) byte   { return (value - mixed(rank, off)) * 173 } // 37 * 173 = 1 mod 256

func mixed(rank int, off uint64) byte {
	x := (off + 1 + uint64(rank)<<40) * 0x9E3779B97F4A7C15
	return byte(x >> 56)
}

// place is where in lines and pages a location begins.
type place int

const (
	aligned place = iota
	unaligned
	overLine
	overPage
	places
)

func (p place) String() string {
	return [...]string{"aligned", "unaligned", "over a line's end", "over a page's end"}[p]
}

// trial is one run of a litmus test.
type trial struct {
	*litmus
	setup  setup
	seed   uint64
	rng    *rand.Rand
	place  place
	apart  bool // operations that pass the cache by take other lanes
	real   bool // in real time, not in a simulated world
	home   int  // the rank of most of the data
	page   uint64
	line   uint64
	bytes  uint64 // of a segment
	zeros  []location
	delays [][2]int // ways between ranks that are slow, in simulated worlds
	ranks  []*worker
	all    gate // of all ranks
	some   gate // of those that have a thread

	failed atomic.Bool
	kill   func(rank int) // nil on real networks
	check  *fenceCheck    // nil: none
	ends   func() error   // looks at what is left
}

func newTrial(l *litmus, s setup, seed uint64, real bool) *trial {
	x := &trial{litmus: l, setup: s, seed: seed, real: real, rng: rand.New(rand.NewPCG(seed, uint64(l.number)))}
	x.page, x.line = uint64(s.cfg.PageSize), uint64(s.cfg.LineSize)
	x.place, x.apart = place(seed%4), seed/4%2 == 1
	n := l.ranks
	if l.size != nil {
		n = l.size(x)
	}
	x.ranks = make([]*worker, n)
	x.bytes = 17 * x.page
	if x.home = n - 1; !l.far && seed/8%2 == 1 {
		x.home = x.rng.IntN(n)
	}
	for i := range x.ranks {
		x.ranks[i] = &worker{trial: x}
	}
	l.f(x)
	return x
}

func (x *trial) String() string {
	lanes := "the same lanes"
	if x.apart {
		lanes = "other lanes"
	}
	return fmt.Sprintf("litmus %d (%s), %s, seed %d: %v, direct operations on %s, data at rank %d",
		x.number, x.name, x.setup.name, x.seed, x.place, lanes, x.home)
}

// loc is the i-th place for data, 0 to 6, each in other pages.
func (x *trial) loc(i int) location {
	base := uint64(1+2*i) * x.page
	switch x.place {
	case aligned:
		base += x.line / 2 &^ 7
	case unaligned:
		base += 3
	case overLine:
		base += x.line - 3
	case overPage:
		base += x.page - 5
	}
	return location{x.home, base, 8}
}

// pageAt is the i-th page, 1 to 16; page 0 has flags.
func (x *trial) pageAt(i int) location { return location{x.home, uint64(i) * x.page, int(x.page)} }

// word is the i-th word, 0 to 7, for atomics: zero at first, in the line of loc(0) or near it.
func (x *trial) word(i int) location {
	l := location{x.home, 2*x.page - 64 + 8*uint64(i), 8}
	x.zeros = append(x.zeros, l)
	return l
}

// flag is a word for signals, at a rank of choice.
func (x *trial) flag(rank, i int) location { return location{rank, 8 * uint64(i), 8} }

// thread is what a rank does.
func (x *trial) thread(rank int, f func(w *worker)) { x.ranks[rank].f = f }

// flags are the bytes at the begin of each rank that have them.
const flags = 64

// fill writes version 0, but for the flags.
func (x *trial) fill(rank int, b []byte) {
	clear(b[:flags])
	for off := uint64(flags); off < uint64(len(b)); off++ {
		b[off] = encode(rank, off, 0)
	}
	for _, l := range x.zeros {
		if l.rank == rank {
			clear(b[l.off:][:l.n])
		}
	}
}

// inspect looks at the data's rank when all is over.
func (x *trial) inspect(stored func(home *worker)) {
	if stored != nil {
		x.ends = func() error { stored(x.ranks[x.home]); return nil }
	}
}

// failure is what a worker panics with, and its rank returns.
type failure struct{ err error }

// main is the program of a rank.
func (x *trial) main(ctx context.Context, e env.Env) (err error) {
	w := x.ranks[e.Rank()]
	w.ctx, w.e, w.me = ctx, e, e.Rank()
	w.mem = e.Region(region).Bytes[:x.bytes]
	w.rng = rand.New(rand.NewPCG(x.seed, uint64(1000+w.me)))
	x.fill(w.me, w.mem)
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			x.failed.Store(true)
			x.all.fail()
			x.some.fail()
			err = errors.Join(p.err, err)
		default:
			x.failed.Store(true)
			x.all.fail()
			x.some.fail()
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if w.f != nil {
		defer func() { err = errors.Join(err, w.close()) }()
		w.open()
	}
	w.meetAll() // all memory is filled
	if w.f != nil {
		w.f(w)
		w.end()
	}
	w.meetAll()
	if w.me == 0 && x.ends != nil {
		if err := x.ends(); err != nil {
			return err
		}
	}
	if x.real {
		w.meetAll() // memory may be filled anew
	}
	return nil
}

// worker is a rank's cache, and how the test uses it.
type worker struct {
	*trial
	f     func(w *worker)
	ctx   context.Context
	e     env.Env
	me    int
	rng   *rand.Rand
	mem   []byte    // of this rank
	lanes env.Lanes // the cache's
	aside env.Lanes // for direct operations
	c     remote
	shut  bool // the test has closed the cache
	gets  uint64
	puts  uint64

	glances  bool // the fence checker is not told
	meetings uint64
}

func (w *worker) open() {
	var err error
	w.lanes, err = w.e.NewLanes()
	w.must("lanes", err)
	w.aside = w.lanes
	if w.apart {
		w.aside, err = w.e.NewLanes()
		w.must("lanes", err)
	}
	w.c, err = w.setup.open(w.e, w.lanes, w.bytes)
	w.must("open", err)
	w.checked()
}

// end closes the cache, which must not lose anything, unless the test has done that.
func (w *worker) end() {
	if !w.shut {
		w.shut = true
		w.must("close", w.c.Close())
	}
}

func (w *worker) close() error {
	var err error
	if w.c != nil && !w.shut {
		_ = w.c.Close() // the test has failed before
	}
	if w.lanes != nil {
		err = w.lanes.Close()
	}
	if w.apart && w.aside != nil {
		err = errors.Join(err, w.aside.Close())
	}
	return err
}

func (w *worker) fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func (w *worker) must(what string, err error) {
	if err != nil {
		w.fail("%s: %w", what, err)
	}
}

// pause lets others run for a random time, half of the time for none.
func (w *worker) pause() {
	switch {
	case w.real:
		if w.rng.IntN(4) == 0 {
			runtime.Gosched()
		}
	case w.rng.IntN(2) == 0:
		w.e.Host().Sleep(time.Duration(w.rng.IntN(4000)))
	}
	if w.failed.Load() {
		w.fail("another rank has failed")
	}
}

// sleep lets time pass, of which a real network needs none.
func (w *worker) sleep(d time.Duration) {
	if !w.real {
		w.e.Host().Sleep(d)
	}
	w.pause()
}

// verified looks at the cache's structure after an operation.
func (w *worker) verified(what string, err error) {
	w.must(what, err)
	w.must("structure after "+what, w.c.Verify())
}

func (w *worker) own(l location) []byte { return w.mem[l.off:][:l.n:l.n] }

// read is the bytes of a location, through the cache. A rank's own memory it loads.
func (w *worker) read(l location) []byte {
	w.pause()
	b := make([]byte, l.n)
	if l.rank == w.me {
		w.loads(l)
		copy(b, w.own(l))
		return b
	}
	w.gets++
	w.reads(l)
	w.verified("get of "+l.String(), w.c.Get(w.ctx, l.rank, l.off, b))
	return b
}

func (w *worker) write(l location, b []byte) {
	w.pause()
	if l.rank == w.me {
		w.stores(l)
		copy(w.own(l), b)
		return
	}
	w.puts++
	w.writes(l)
	w.verified("put of "+l.String(), w.c.Put(w.ctx, l.rank, l.off, b))
	for i := range b {
		b[i] = 0xee // the source is free for reuse
	}
}

// versions are those of the bytes of a location.
func versions(l location, b []byte) []byte {
	v := make([]byte, len(b))
	for i := range b {
		v[i] = decode(l.rank, l.off+uint64(i), b[i])
	}
	return v
}

func data(l location, version ...byte) []byte {
	b := make([]byte, l.n)
	for i := range b {
		b[i] = encode(l.rank, l.off+uint64(i), version[i%len(version)])
	}
	return b
}

// get returns versions, put writes one.
func (w *worker) get(l location) []byte          { return versions(l, w.read(l)) }
func (w *worker) put(l location, version byte)   { w.write(l, data(l, version)) }
func (w *worker) value(l location) uint64        { return binary.NativeEndian.Uint64(w.read(l)) }
func (w *worker) putValue(l location, v uint64)  { w.write(l, binary.NativeEndian.AppendUint64(nil, v)) }
func (w *worker) sees(l location, want ...byte)  { w.shows(l, w.get(l), want...) }
func (w *worker) holds(l location, want ...byte) { w.shows(l, versions(l, w.own(l)), want...) }

// shows demands versions, in turn.
func (w *worker) shows(l location, got []byte, want ...byte) {
	for i, v := range got {
		if v != want[i%len(want)] {
			from, to := max(0, i-8), min(len(got), i+8)
			w.fail("rank %d reads version %d of byte %d of %v, want %d; around it %v", w.me, v, i, l, want[i%len(want)], got[from:to])
		}
	}
}

// among demands one of some versions for each byte, and for a word that is aligned one for all.
func (w *worker) among(l location, got []byte, want ...byte) {
	for _, v := range got {
		if !slices.Contains(want, v) || l.off%8 == 0 && l.n == 8 && v != got[0] {
			w.fail("rank %d reads versions %v of %v, want one of %v", w.me, got, l, want)
		}
	}
}

func (w *worker) acquire() {
	w.pause()
	if w.omits("acquire") {
		return
	}
	w.c.Acquire()
	w.acquires()
	w.verified("acquire", nil)
}

func (w *worker) release() {
	w.pause()
	if w.omits("release") {
		return
	}
	w.verified("release", w.c.Release(w.ctx))
	w.releases()
}

func (w *worker) fence() { w.release(); w.acquire() }

// deliver is a release that leaves alone what passed the cache by.
func (w *worker) deliver() {
	w.pause()
	w.verified("deliver", w.c.Deliver(w.ctx))
	w.releases()
}

func (w *worker) prefetch(l location) {
	w.pause()
	if l.rank != w.me {
		w.verified("prefetch of "+l.String(), w.c.Prefetch(w.ctx, l.rank, l.off, l.n))
	}
}

// pass tells the cache of an operation that passes it by.
func (w *worker) pass(l location, write bool) {
	w.verified("passing by", w.c.Direct(w.ctx, l.rank, l.off, l.n, write))
	if write && w.apart { // the cache does not see when it is complete
		w.c.Linger()
	}
}

// readDirect gets past the cache.
func (w *worker) readDirect(l location) []byte {
	w.pause()
	b := make([]byte, l.n)
	if l.rank == w.me {
		w.loads(l)
		copy(b, w.own(l))
		return b
	}
	w.pass(l, false)
	if l.off >= flags { // who waits for one hears of it
		w.reads(l)
	}
	lane := w.aside.To(l.rank)
	h, err := lane.Get(l.rank, l.off, b, fabric.Blocking)
	if err == nil {
		_, err = lane.Wait(w.ctx, h)
	}
	w.must("direct get of "+l.String(), err)
	return b
}

func (w *worker) getDirect(l location) []byte { return versions(l, w.readDirect(l)) }

// writeDirect puts past the cache, and is complete when it returns.
func (w *worker) writeDirect(l location, b []byte) {
	w.pause()
	if l.rank == w.me {
		w.stores(l)
		copy(w.own(l), b)
		return
	}
	w.pass(l, true)
	if l.off >= flags {
		w.writes(l)
	}
	lane := w.aside.To(l.rank)
	h, err := lane.Put(l.rank, l.off, b, fabric.Blocking)
	if err == nil {
		_, err = lane.Wait(w.ctx, h)
	}
	w.must("direct put of "+l.String(), err)
}

func (w *worker) putDirect(l location, version byte) { w.writeDirect(l, data(l, version)) }

// putLater puts past the cache; flush completes it.
func (w *worker) putLater(l location, version byte) {
	w.pause()
	if l.rank == w.me {
		w.stores(l)
		copy(w.own(l), data(l, version))
		return
	}
	w.pass(l, true)
	w.writes(l)
	_, err := w.aside.To(l.rank).Put(l.rank, l.off, data(l, version), fabric.Implicit)
	w.must("implicit put of "+l.String(), err)
}

// flush completes what the worker has written, through the cache and past it.
func (w *worker) flush() {
	w.release()
	for _, l := range w.aside.All() {
		w.must("flush", l.Flush(w.ctx))
	}
	w.verified("flush", w.c.Release(w.ctx))
	w.releases()
}

// atomic is an operation that returns the old value, and hence fences.
func (w *worker) atomic(l location, a fabric.Atomic) uint64 {
	w.deliver()
	w.pass(l, true)
	w.updates(l, true)
	lane := w.aside.Atomic(l.rank)
	old, h, err := lane.Atomic(l.rank, l.off, a, fabric.Blocking)
	if err == nil && h != fabric.Done {
		old, err = lane.Wait(w.ctx, h)
	}
	w.must("atomic on "+l.String(), err)
	w.hears(l)
	w.acquire()
	return old
}

func (w *worker) add(l location, n uint64) uint64 {
	return w.atomic(l, fabric.Atomic{Op: fabric.FetchAdd, Operand: n})
}

// addLater is an atomic that returns nothing; flush completes it.
func (w *worker) addLater(l location, n uint64) {
	w.pause()
	w.pass(l, true)
	w.updates(l, false)
	_, _, err := w.aside.Atomic(l.rank).Atomic(l.rank, l.off, fabric.Atomic{Op: fabric.FetchAdd, Operand: n}, fabric.Implicit)
	w.must("implicit atomic on "+l.String(), err)
}

// set gives a flag a value; what was released before is visible to whoever sees that.
func (w *worker) set(flag location, v uint64) {
	w.signals(flag)
	if flag.rank == w.me {
		atomic.StoreUint64(word(w.own(flag)), v)
		return
	}
	w.writeDirect(flag, binary.NativeEndian.AppendUint64(nil, v))
}

// wait returns when a flag has at least a value.
func (w *worker) wait(flag location, v uint64) {
	for {
		var now uint64
		if flag.rank == w.me {
			w.must("poll", w.aside.To(flag.rank).Poll())
			now = atomic.LoadUint64(word(w.own(flag)))
		} else {
			now = binary.NativeEndian.Uint64(w.readDirect(flag))
		}
		if now >= v {
			w.hears(flag)
			return
		}
		w.pause()
		w.must("wait", context.Cause(w.ctx))
	}
}

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }

// barrier is a fence, with the meeting of all ranks between its halves.
func (w *worker) barrier() {
	if w.omits("barrier") {
		return
	}
	w.release()
	w.meet()
	w.acquire()
}

// meet returns when all workers have come.
func (w *worker) meet() {
	n := 0
	for _, o := range w.ranks {
		if o.f != nil {
			n++
		}
	}
	defer w.meets()()
	w.must("meeting", w.some.pass(w.ctx, n, w.e.Host()))
}

// meetAll returns when all ranks have come.
func (w *worker) meetAll() {
	w.must("meeting", w.all.pass(w.ctx, len(w.ranks), w.e.Host()))
}

// call runs f with the memory of a rank, as a handler does there. Like a call it releases before,
// and acquires afterwards.
func (w *worker) call(rank int, f func(mem []byte)) {
	w.release()
	w.sleep(time.Duration(w.rng.IntN(3000)))
	w.handles(rank, func() { f(w.ranks[rank].mem) })
	w.sleep(time.Duration(w.rng.IntN(3000)))
	w.acquire()
}

// touch reads other pages, so that those used before are evicted.
func (w *worker) touch(from, to int) {
	for i := from; i <= to; i++ {
		w.sees(w.pageAt(i).part(w.rng.IntN(int(w.page)-8), 8), 0)
	}
}

// gate is where the ranks meet, again and again. It orders nothing but the goroutines.
type gate struct {
	mu      sync.Mutex
	waiting []am.Parker
	broken  bool
}

func (g *gate) pass(ctx context.Context, n int, h env.Host) error {
	g.mu.Lock()
	if g.broken || len(g.waiting) == n-1 {
		g.wakeLocked()
		return g.leaveLocked()
	}
	p := h.NewParker()
	g.waiting = append(g.waiting, p)
	g.mu.Unlock()
	if err := p.Park(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	return g.leaveLocked()
}

func (g *gate) leaveLocked() error {
	defer g.mu.Unlock()
	if g.broken {
		return errors.New("another rank has failed")
	}
	return nil
}

func (g *gate) wakeLocked() {
	for _, p := range g.waiting {
		p.Unpark()
	}
	g.waiting = nil
}

// fail lets nobody wait any more.
func (g *gate) fail() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = true
	g.wakeLocked()
}
