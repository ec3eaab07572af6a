package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// IncastParams are the size of an Incast. Fields that are 0 get their defaults.
type IncastParams struct {
	Size     int // bytes of a payload, 16 to 2^30. Default: 64 KiB
	Payloads int // that each rank but 0 sends. Default: 256
	Each     int // of these at once. Default: 8
	Memory   int // payloads that have memory at rank 0. Default: all that are sent at once
}

// IncastResult is what rank 0 found; at other ranks all but Elapsed is 0.
type IncastResult struct {
	Elapsed time.Duration // from a barrier until all have come
	Bytes   int64         // of payloads
	Limit   int64         // of the budget, bytes
	Peak    int64         // bytes of payloads that had memory at once
}

// Incast has all ranks but 0 send payloads to rank 0, which checks that each comes once, as it was.
type Incast struct {
	p     IncastParams
	ranks int

	mu    sync.Mutex
	seen  [][]bool // of each rank, by number
	left  int
	wrong error
	all   chan struct{}
}

const incastName = "incast"

// incastSum is the sum of the bytes of a payload: the ones of a word and its complement are 255
// each.
const incastSum = byte(8 * 255 % 256)

// NewIncast prepares one rank's part in a job of so many ranks, at least 2.
func NewIncast(p IncastParams, ranks int) (*Incast, error) {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&p.Size, 64<<10)
	set(&p.Payloads, 256)
	set(&p.Each, 8)
	set(&p.Memory, p.Each*max(ranks-1, 1))
	switch {
	case ranks < 2:
		return nil, fmt.Errorf("bench: incast: %s: want 2 or more", errtext.Count(ranks, "rank"))
	case p.Size < 16 || p.Size > 1<<30:
		return nil, fmt.Errorf("bench: incast: payloads of %s: want 16 to 2^30", errtext.Count(p.Size, "byte"))
	case p.Payloads < 1 || p.Payloads > 1<<24 || p.Each < 1 || p.Each > 1<<10 || p.Memory < 1 || p.Memory > 1<<20:
		return nil, fmt.Errorf("bench: incast: %d payloads, %d at once, memory for %d: want 1 to 2^24, 2^10 and 2^20",
			p.Payloads, p.Each, p.Memory)
	}
	i := &Incast{p: p, ranks: ranks, left: p.Payloads * (ranks - 1), all: make(chan struct{})}
	for range ranks {
		i.seen = append(i.seen, make([]bool, p.Payloads))
	}
	return i, nil
}

// Configure sets the budget and the function in the configuration of the job.
func (i *Incast) Configure(c *conduit.Config) {
	c.Memory.Budget = flow.BudgetConfig{Limit: int64(i.p.Memory) * int64(pagepool.Round(uint64(i.p.Size))), Small: -1,
		Unscheduled: -1}
	c.Memory.Payloads = map[string]func(*conduit.Payload){incastName: i.take}
}

// stamp makes a payload: its rank and number, zeros, and the complement of the first word.
func (i *Incast) stamp(b []byte, rank, n int) {
	binary.LittleEndian.PutUint64(b, uint64(rank)<<32|uint64(n))
	binary.LittleEndian.PutUint64(b[len(b)-8:], ^(uint64(rank)<<32 | uint64(n)))
}

func (i *Incast) take(p *conduit.Payload) {
	var sum byte
	for _, v := range p.Data() { // the work of who consumes it
		sum += v
	}
	b := p.Data()
	head := binary.LittleEndian.Uint64(b)
	rank, n := int(head>>32), int(uint32(head))
	ok := len(b) == i.p.Size && rank == p.From() && n < i.p.Payloads &&
		binary.LittleEndian.Uint64(b[len(b)-8:]) == ^head && sum == incastSum
	p.Release()
	i.mu.Lock()
	defer i.mu.Unlock()
	if !ok || i.seen[rank][n] {
		i.wrong = fmt.Errorf("payload %d of rank %d came twice, or wrong", n, p.From())
	} else {
		i.seen[rank][n] = true
	}
	if i.left--; i.left == 0 {
		close(i.all)
	}
}

// Run sends on all ranks of the worker's job together.
func (i *Incast) Run(ctx context.Context, w *conduit.Worker) (res IncastResult, err error) {
	job := w.Job()
	if err := w.Barrier(ctx); err != nil {
		return res, err
	}
	begin := time.Now()
	if job.Rank() > 0 {
		err = i.send(ctx, job)
	} else {
		select {
		case <-i.all:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s := job.Budget().MemoryStats()
		res.Bytes, res.Limit, res.Peak = int64(i.p.Size)*int64(i.p.Payloads)*int64(i.ranks-1), s.Limit, s.MemoryPeak
	}
	res.Elapsed = time.Since(begin)
	if err != nil {
		return res, fmt.Errorf("bench: incast: %w", err)
	}
	i.mu.Lock()
	wrong := i.wrong
	i.mu.Unlock()
	return res, agree(ctx, job, "incast", wrong)
}

// send sends this rank's payloads, some at a time.
func (i *Incast) send(ctx context.Context, job *conduit.Job) error {
	var all sync.WaitGroup
	errs := make([]error, i.p.Each)
	for s := range i.p.Each {
		all.Go(func() {
			b := make([]byte, i.p.Size)
			for n := s; n < i.p.Payloads && errs[s] == nil; n += i.p.Each {
				i.stamp(b, job.Rank(), n)
				errs[s] = conduit.SendPayload(ctx, job, 0, incastName, b)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
