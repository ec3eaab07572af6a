package transient

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// FetchFrom in messages, all of the library's endpoints:
//
//	conduit.fetch       to the maker of the data: number of the fetch, most bytes, hash of the name,
//	                    arguments
//	conduit.fetch.data  the data, a large payload (am.Large): number of the fetch
//	conduit.fetch.fail  why there are none, a Medium: number of the fetch; text
//
// The number is the requesting rank's own. Unwanted data are refused when they
// are announced.
const (
	fetchName     = "conduit.fetch"
	fetchDataName = "conduit.fetch.data"
	fetchFailName = "conduit.fetch.fail"

	maxFetchArgs = am.MaxArgs - 3
	maxFetchText = 512 // of an error, in bytes
	// maxRequests is how many requests of one rank may be unanswered here. More are refused, and as
	// many again, with refusals that are not taken, dropped.
	maxRequests = 4096
)

// fetchProtocol is FetchFrom, on both sides, under Memory.mu.
type fetchProtocol struct {
	makers map[uint64]named[*FetchRequest]
	ask    *am.Handler
	data   *am.Large
	refuse *am.Handler

	fetches uint64                             // numbers given
	asked   map[uint64]*messageFetch           // of this rank, that wait for an announcement
	coming  map[*am.Announcement]*messageFetch // that have one
	serving map[int]*atomic.Int64              // requests of each rank that are unanswered
}

func (m *Memory) registerFetches(table *am.Table) {
	m.ask = table.Handle(fetchName, m.asks)
	m.refuse = table.Handle(fetchFailName, m.refused)
	m.data = table.HandleLarge(fetchDataName, am.Receiver{Announced: m.announced, Ended: m.arrived, Quick: true})
}

func (m *Memory) openFetches() {
	m.makers = byHash(m.cfg.Fetches)
	m.asked, m.coming, m.serving = map[uint64]*messageFetch{}, map[*am.Announcement]*messageFetch{},
		map[int]*atomic.Int64{}
}

// receiveRuns is where the data of a set's messages arrive: runs of the region, which are taken at
// once, so that no two sets have a part each of the other's need.
type receiveRuns struct {
	m       *Memory
	fetches []*messageFetch

	p      *flow.Pending // the set
	region *region       // where they arrive, once they have begun

	claim *pagepool.Claim // once they have begun

	waits bool // for them, in Wait

	// Under Memory.mu.
	begun  bool
	placed bool // the runs are taken
	gone   bool // they will not be
}

// bytes is their part of the region.
func (l *receiveRuns) bytes() (n uint64) {
	for _, f := range l.fetches {
		n += pagepool.Round(uint64(f.n))
	}
	return n
}

// wait is why Wait may not wait for the runs, if they were claimed. An owner of some, or of bytes
// of the reserve, must not wait for more but in the reserve's part: then the owners of runs
// give them back.
func (l *receiveRuns) wait() error {
	l.waits = true
	l.m.mu.Lock()
	pending := l.begun && !l.placed
	l.m.mu.Unlock()
	if pending {
		return l.p.HoldAndWait()
	}
	return nil
}

// begin claims the runs.
func (l *receiveRuns) begin(first *messageFetch) {
	sizes := make([]int, len(l.fetches))
	for i, f := range l.fetches {
		sizes[i] = f.n
	}
	if l.region = l.m.region; l.p.Reserved() {
		l.region = l.m.reserved
	}
	l.p.WaitsForPlace(true)
	if l.claim = l.region.Take(sizes, l.ready); l.waits {
		if err := l.wait(); err != nil {
			first.fail(err)
		}
	}
}

// withdraw reports whether a fetch that fails may end: no run is being taken for it.
func (l *receiveRuns) withdraw(f *messageFetch, err error) bool {
	gone := l.claim.Cancel()
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.gone = l.gone || gone; !l.gone && !l.placed {
		f.late = err
	}
	return f.late == nil
}

// ready takes the runs, requests the fetches started meanwhile, and ends those given up.
func (l *receiveRuns) ready(offs []uint64) {
	var send, late []*messageFetch
	l.p.WaitsForPlace(false)
	l.m.mu.Lock()
	l.placed = true
	for i, f := range l.fetches {
		f.off = offs[i]
		switch {
		case f.late != nil:
			late = append(late, f)
		case f.state == fetchAsked:
			send = append(send, f)
		}
	}
	l.m.mu.Unlock()
	for _, f := range late {
		f.ended(f.late)
	}
	for _, f := range send {
		f.send()
	}
}

// lease has the data of all fetches valid.
func (l *receiveRuns) lease(of *flow.Lease) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for _, f := range l.fetches {
		f.out.data, f.out.lease = l.region.Memory(f.off, f.size), of
	}
}

// messageFetch is a fetch of what a function at another rank makes: flow.Fetch.
type messageFetch struct {
	m    *Memory
	runs *receiveRuns
	rank int
	name string
	n    int // bytes at most
	args []uint64
	out  *Fetched

	// Under Memory.mu.
	state  fetchState
	number uint64
	off    uint64             // in the region, once placed
	size   int                // of the data
	late   error              // it was given up while its run was taken
	giveUp context.CancelFunc // of the request, while it waits to be sent
	ended  func(error)
}

type fetchState uint8

const (
	fetchNew    fetchState = iota
	fetchAsked             // started; its memory is not written
	fetchComing            // its memory is granted to the rank
	fetchOver
)

// Rank implements flow.Fetch.
func (f *messageFetch) Rank() int { return f.rank }

// Bytes implements flow.Fetch.
func (f *messageFetch) Bytes() int64 { return int64(pagepool.Round(uint64(f.n))) }

// Start requests the data, when there is a place for them.
func (f *messageFetch) Start(ended func(error)) {
	f.m.mu.Lock()
	f.state, f.ended = fetchAsked, ended
	begin := !f.runs.begun
	f.runs.begun = true
	placed := f.runs.placed
	f.m.mu.Unlock()
	switch {
	case begin:
		f.runs.begin(f)
	case placed:
		f.send()
	}
}

// send requests the data, at once or as soon as a message can be sent.
func (f *messageFetch) send() {
	ctx, cancel := context.WithCancel(context.Background())
	f.m.mu.Lock()
	if f.state != fetchAsked {
		f.m.mu.Unlock()
		cancel()
		return
	}
	f.m.fetches++
	f.number, f.giveUp = f.m.fetches, cancel
	f.m.asked[f.number] = f
	args := append([]uint64{f.number, uint64(f.n), Hash(f.name)}, f.args...)
	f.m.mu.Unlock()
	if f.m.ask.Post(am.NoWait, f.m.via(), f.rank, args...) == nil {
		cancel()
		return
	}
	go func() { // for want of a credit, or because the rank is dead
		defer cancel()
		if err := f.m.ask.Post(ctx, f.m.via(), f.rank, args...); err != nil {
			f.fail(err)
		}
	}()
}

// fail ends a fetch with memory granted to no rank.
func (f *messageFetch) fail(err error) {
	f.m.mu.Lock()
	if f.state != fetchAsked {
		f.m.mu.Unlock()
		return
	}
	f.state = fetchOver
	delete(f.m.asked, f.number)
	giveUp, placed := f.giveUp, f.runs.placed
	f.m.mu.Unlock()
	if giveUp != nil {
		giveUp()
	}
	if err = f.failed(err); placed || f.runs.withdraw(f, err) {
		f.ended(err)
	}
}

func (f *messageFetch) failed(err error) error {
	return fmt.Errorf("conduit: fetch %q from rank %d: %w", f.name, f.rank, err)
}

// Cancel implements flow.Fetch. Data with granted memory are awaited.
func (f *messageFetch) Cancel() { f.fail(flow.ErrWithdrawn) }

// Free implements flow.Fetch.
func (f *messageFetch) Free() {
	f.m.mu.Lock()
	placed := f.runs.placed
	f.m.mu.Unlock()
	if placed {
		f.runs.region.Give(f.off, f.n)
	}
}

// errNotAwaited refuses data.
var errNotAwaited = errors.New("nobody waits for these data any more")

// announced grants data the memory that was taken for them.
func (m *Memory) announced(a *am.Announcement) {
	m.mu.Lock()
	f := m.asked[a.Arg(0)]
	if f == nil || f.rank != a.From() || a.Size() > f.n {
		m.mu.Unlock()
		_ = a.Refuse(errNotAwaited) // or its sender is dead
		return
	}
	delete(m.asked, f.number)
	m.coming[a] = f
	f.state, f.size = fetchComing, a.Size()
	m.mu.Unlock()
	_ = a.Grant(f.runs.region.begin + f.off) // an error is that it has ended: arrived learns of it
}

// arrived takes the end of announced data.
func (m *Memory) arrived(a *am.Announcement, err error) {
	m.mu.Lock()
	f := m.coming[a]
	delete(m.coming, a)
	if f != nil {
		f.state = fetchOver
	}
	m.mu.Unlock()
	if f == nil {
		return // refused
	}
	m.env.Learned()
	if err != nil {
		err = f.failed(err)
	}
	f.ended(err)
}

// refused is the handler of what a function did not make.
func (m *Memory) refused(c *am.Call) {
	m.mu.Lock()
	f := m.asked[c.Arg(0)]
	m.mu.Unlock()
	if f != nil && f.rank == c.From() {
		f.fail(&FetchError{Rank: f.rank, Name: f.name, Text: errtext.Printable(c.Payload(), maxFetchText)})
	}
}

// FetchError says why a rank makes no data.
type FetchError struct {
	Rank int
	Name string
	Text string // of that rank; its first 512 bytes
}

func (e *FetchError) Error() string {
	return fmt.Sprintf("rank %d makes no %q: %s", e.Rank, e.Name, e.Text)
}

// fetchesDown ends the fetches that wait for a rank to announce data.
func (m *Memory) fetchesDown(rank int, err error) {
	var all []*messageFetch
	m.mu.Lock()
	for _, f := range m.asked {
		if f.rank == rank {
			all = append(all, f)
		}
	}
	delete(m.serving, rank)
	m.mu.Unlock()
	for _, f := range all {
		f.fail(err)
	}
}
