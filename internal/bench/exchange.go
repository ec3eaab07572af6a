package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/pagepool"
	"github.com/ibconduit/conduit/internal/pressure"
)

// The arms of Jacobi and FT: how pieces of arrays, ghost faces and blocks, get from part to part.
const (
	// ArmNormal packs and sends all pieces of a rank, and receives all, before it computes, as a
	// program of MPI with one wait for all: both copies of each piece exist at once.
	ArmNormal = "normal"
	// ArmFetch fetches pieces with memory for all of a rank: the receiver's copies exist at once.
	ArmFetch = "fetch"
	// ArmTokens fetches pieces with memory for so many.
	ArmTokens = "tokens"
	// ArmAdaptive, of Jacobi, is ArmTokens with a budget that follows the machine's memory.
	ArmAdaptive = "adaptive"
)

// Footprint is the memory that a rank needs in the model, in bytes.
type Footprint struct {
	Persistent int64   // arrays
	Piece      int64   // what goes from part to part, in whole pages
	Pieces     int     // that a rank receives in a step
	InFlight   int64   // pieces and packed ones at the peak, all of this rank
	Tau        float64 // of ArmNormal: InFlight / Persistent
}

// Usage is what one rank of Jacobi or FT took.
type Usage struct {
	Sizes     Footprint
	Elapsed   time.Duration // of the iterations that count
	Faults    int64         // major faults meanwhile; -1: not known
	Peak      int64         // bytes of pieces and packed ones, the most at once
	Received  int64         // of Peak what the library's budget had, at its own peak
	Checksums []complex128  `json:"-"` // of FT
}

const (
	// packers is how many pieces a rank packs and sends at once to ranks that fetch them. Their
	// buffers are the rank's own: to wait for memory there could wait for a rank that waits for the
	// piece.
	packers = 4
	// maxRequests is how many requests of one rank a rank answers at a time.
	maxRequests = 4096
)

// exchange moves pieces between the parts of all ranks, in steps: all of a rank are sent and
// received at once, or each is fetched from a part that has reached the step.
type exchange struct {
	name    string // of the function that pieces come by; its arguments: two that name a piece, and a step
	arm     string
	tokens  int // pieces that have memory at once, of ArmTokens
	bytes   int // of a piece
	pieces  int // that a rank receives in a step
	parts   int // of a rank
	senders int // sends of ArmNormal in the library at once: each has a goroutine, which waits twice
	// part is the part of this rank that a piece is fetched from, or comes for; -1: none.
	part func(job *conduit.Job, a, b int) int
	pack func(buf []byte, a, b, step int)

	job    *conduit.Job
	w      *conduit.Worker
	ctx    context.Context
	life   context.Context // of what other ranks ask for, also before the run
	end    context.CancelFunc
	free   []func() // of arrays and buffers
	packed int64    // bytes of pieces that were packed, the most at once
	asked  chan *conduit.FetchRequest
	all    chan struct{} // all pieces of a step have come, of ArmNormal

	mu     sync.Mutex
	served uint64 // requests; counting them orders packing before the next step of the part
	ready  []int  // the step that each part has reached, -1: none
	later  [][]*conduit.FetchRequest
	came   map[[2]int]*conduit.Payload
}

// start makes what other ranks' requests need.
func (x *exchange) start() {
	for range x.parts {
		x.ready = append(x.ready, -1)
	}
	x.later, x.came, x.all = make([][]*conduit.FetchRequest, x.parts), map[[2]int]*conduit.Payload{},
		make(chan struct{}, 1)
	x.asked = make(chan *conduit.FetchRequest, 2*x.pieces+1) // as many as there can be: who asks is not held up
	x.life, x.end = context.WithCancel(context.Background())
}

// piece is what a piece takes of memory.
func (x *exchange) piece() int64 { return int64(pagepool.Round(uint64(x.bytes))) }

// sizes are the model's, for so many bytes of arrays.
func (x *exchange) sizes(persistent int64) Footprint {
	s := Footprint{Persistent: persistent, Piece: x.piece(), Pieces: x.pieces}
	all := int64(x.pieces) * s.Piece
	s.Tau = 2 * float64(all) / float64(max(persistent, 1))
	switch x.arm {
	case ArmNormal:
		s.InFlight = 2 * all
	case ArmFetch:
		s.InFlight = all + packers*s.Piece
	default:
		s.InFlight = min(int64(x.tokens)*s.Piece, all) + packers*s.Piece
	}
	return s
}

// configure sets the budget and the functions in the configuration of the job.
func (x *exchange) configure(m *conduit.MemoryConfig) {
	all := int64(max(x.pieces, 1)) * x.piece()
	m.Budget = flow.BudgetConfig{Limit: all, Small: -1, Unscheduled: -1, StallAfter: time.Minute}
	if x.arm == ArmTokens {
		m.Budget.Limit, m.Budget.Messages = min(int64(x.tokens)*x.piece(), all), x.tokens
	}
	m.ReceiveSize = m.Budget.Limit // over verbs it has memory all the time
	if x.arm == ArmNormal {
		m.Payloads = map[string]func(*conduit.Payload){x.name: x.take}
	} else {
		m.Fetches = map[string]func(*conduit.FetchRequest){x.name: x.asks}
	}
}

// open serves other ranks until close is called, which gives all memory back.
func (x *exchange) open(ctx context.Context, w *conduit.Worker) (closes func(), err error) {
	x.job, x.w = w.Job(), w
	var stop context.CancelFunc
	x.ctx, stop = context.WithCancel(ctx)
	var serving sync.WaitGroup
	closes = func() {
		stop()
		x.end()
		serving.Wait()
		for _, free := range x.free {
			free()
		}
	}
	if x.arm == ArmNormal {
		return closes, nil
	}
	piece := x.piece()
	bufs, err := x.memory(packers * piece)
	if err != nil {
		closes()
		return nil, err
	}
	x.packed = packers * piece
	for i := range int64(packers) {
		serving.Go(func() { x.serve(bufs[i*piece:][:x.bytes]) })
	}
	return closes, nil
}

// memory is of the rank's own until the end of the run. It is not taken before it is used: the
// kernel ends a process that takes much at once in a small group.
func (x *exchange) memory(n int64) ([]byte, error) {
	b, free, err := offheap.Map(int(n))
	if err == nil {
		x.free = append(x.free, free)
	}
	return b, err
}

// measure has all ranks begin together, and says what run took.
func (x *exchange) measure(res *Usage, run func() error) error {
	if err := x.w.Barrier(x.ctx); err != nil {
		return err
	}
	probe := pressure.New()
	first, begin := probe.Read().MajorFaults, time.Now()
	if err := run(); err != nil {
		return err
	}
	res.Elapsed = time.Since(begin)
	if res.Faults = probe.Read().MajorFaults - first; first < 0 {
		res.Faults = -1
	}
	res.Received = x.job.Budget().MemoryStats().MemoryPeak
	res.Peak = res.Received + x.packed
	return nil
}

// asks is the function by which pieces are fetched. A piece of a step that the part has not
// reached is answered when it has: fetching does not order who makes and who takes, as sending did.
// A part that is two steps further has no such piece, and cannot be: it needs one of the part that
// asks first.
func (x *exchange) asks(r *conduit.FetchRequest) {
	a, b, step := int(r.Arg(0)), int(r.Arg(1)), int(r.Arg(2))
	l := x.part(r.Job(), a, b)
	if l < 0 || r.Size() != x.bytes {
		_ = r.Fail(x.life, fmt.Errorf("no piece %d, %d of %d bytes", a, b, r.Size()))
		return
	}
	x.mu.Lock()
	has := x.ready[l]
	if has < step {
		x.later[l] = append(x.later[l], r)
	}
	x.mu.Unlock()
	switch {
	case has > step+1:
		_ = r.Fail(x.life, fmt.Errorf("piece %d, %d of step %d, but its part has reached %d", a, b, step, has))
	case has >= step:
		x.answer(r)
	}
}

// answer has a request answered.
func (x *exchange) answer(r *conduit.FetchRequest) {
	select {
	case x.asked <- r:
	case <-x.life.Done():
	}
}

// reached says that a part has its data of a step: requests for them are answered.
func (x *exchange) reached(l, step int) {
	x.mu.Lock()
	x.ready[l] = step
	var due, later []*conduit.FetchRequest
	for _, r := range x.later[l] {
		if int(r.Arg(2)) <= step {
			due = append(due, r)
		} else {
			later = append(later, r)
		}
	}
	x.later[l] = later
	x.mu.Unlock()
	for _, r := range due {
		x.answer(r)
	}
}

// has is the step that a part has reached.
func (x *exchange) has(l int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ready[l]
}

// serve answers requests with one buffer, until the run ends.
func (x *exchange) serve(buf []byte) {
	for {
		select {
		case <-x.ctx.Done():
			return
		case r := <-x.asked:
			x.pack(buf, int(r.Arg(0)), int(r.Arg(1)), int(r.Arg(2)))
			x.mu.Lock()
			x.served++
			x.mu.Unlock()
			_ = r.Reply(x.ctx, buf) // who asked learns of an error
		}
	}
}

// ahead fetches n sets of so many pieces at most. As many as have memory are under way, and one,
// which is granted when the first is released; take gets each when it is there.
func (x *exchange) ahead(n, pieces int, fill func(k int, set *conduit.FetchSet), take func(k int)) error {
	type posted struct {
		k   int
		set *conduit.PendingSet
	}
	var way []posted
	defer func() {
		for _, p := range way {
			p.set.Cancel()
		}
	}()
	for next := 0; next < n || len(way) > 0; {
		most := min(x.job.Budget().Stats().Limit/(int64(pieces)*x.piece())+1, int64(maxRequests/pieces))
		for ; next < n && int64(len(way)) < most; next++ {
			set := conduit.NewFetchSet(x.w)
			fill(next, set)
			pending, err := set.Post()
			if err != nil {
				return err
			}
			way = append(way, posted{next, pending})
		}
		at, lease, err := 0, (*conduit.Lease)(nil), error(nil)
		for i := 0; i < len(way) && lease == nil && err == nil; i++ { // starts those that have memory, too
			at = i
			lease, err = way[i].set.Test()
		}
		if lease == nil && err == nil {
			at = 0
			lease, err = way[0].set.Wait(x.ctx)
		}
		if err != nil {
			return err
		}
		take(way[at].k)
		lease.Release()
		way = append(way[:at], way[at+1:]...)
	}
	return nil
}

// take is the function that gets what other parts send. It keeps the payload until all have come.
// No rank is a step ahead, for which there is no memory: steps of ArmNormal end with a barrier.
func (x *exchange) take(p *conduit.Payload) {
	key := [2]int{int(p.Arg(0)), int(p.Arg(1))}
	x.mu.Lock()
	ok := len(p.Data()) == x.bytes && x.part(p.Job(), key[0], key[1]) >= 0 && x.came[key] == nil
	if ok {
		x.came[key] = p
	}
	all := len(x.came) == x.pieces
	x.mu.Unlock()
	if !ok {
		p.Release()
	} else if all {
		x.all <- struct{}{}
	}
}

// parcel is a piece that is sent: to a rank, under the receiver's name for it.
type parcel struct{ rank, a, b int }

// trade packs and sends all pieces, some at a time, and returns those that have come by their
// names, when all have.
func (x *exchange) trade(out []parcel, step int, pack func(buf []byte, n int)) (map[[2]int]*conduit.Payload, error) {
	piece := int(x.piece())
	mem, free, err := offheap.Map(max(len(out), 1) * piece)
	if err != nil {
		return nil, err
	}
	defer free()
	x.packed = max(x.packed, int64(len(out)*piece))
	buf := func(n int) []byte { return mem[n*piece:][:x.bytes] }
	for n := range out {
		pack(buf(n), n)
	}
	errs := make([]error, x.senders)
	var sending sync.WaitGroup
	for s := range errs {
		sending.Go(func() {
			for n := s; n < len(out) && errs[s] == nil; n += len(errs) {
				p := out[n]
				if err := conduit.SendPayload(x.ctx, x.job, p.rank, x.name, buf(n), uint64(p.a), uint64(p.b),
					uint64(step)); err != nil {
					errs[s] = fmt.Errorf("piece %d: %w", n, err)
				}
			}
		})
	}
	sending.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if x.pieces > 0 {
		select {
		case <-x.all:
		case <-x.ctx.Done():
			return nil, context.Cause(x.ctx)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	came := x.came
	x.came = map[[2]int]*conduit.Payload{}
	return came, nil
}

// agree returns an error on all ranks where one has found something wrong.
func agree(ctx context.Context, job *conduit.Job, kernel string, wrong error) error {
	bad, err := conduit.AllGatherValue(ctx, job, wrong != nil)
	if err != nil {
		return errors.Join(wrong, err)
	}
	if r := slices.Index(bad, true); r >= 0 {
		return &WrongError{Kernel: kernel, Rank: r, Cause: cmp.Or(wrong,
			errors.New("the details are in that rank's own error"))}
	}
	return nil
}
