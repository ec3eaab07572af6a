package conduit

import (
	"fmt"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/pagepool"
	"github.com/ibconduit/conduit/internal/transient"
)

// ErrNoBudget is wrapped by the errors of what needs a budget of memory in a job that has none, or
// none of its segment set apart.
var ErrNoBudget = transient.ErrNoBudget

// The errors of package flow, which fetch sets return too.
var (
	ErrSetTooLarge  = flow.ErrSetTooLarge
	ErrHoldAndWait  = flow.ErrHoldAndWait
	ErrBudgetClosed = flow.ErrBudgetClosed
)

type (
	// Budget is the budget of a rank's transient memory: a [flow.Budget], and MemoryStats. Sets of its
	// own are for fetches that the program implements itself; [NewFetchSet] has the job's.
	Budget = transient.Budget
	// MemoryStats are where transient memory is. It is Buffers and Idle, what Acquire holds, and what
	// came unasked: at most the budget's limit.
	MemoryStats = transient.Stats
	// MemoryLayout is what a job has for transient memory.
	MemoryLayout = transient.Layout
)

// Budget is the budget of the job's transient memory at this rank; nil without Config.Memory.
func (j *Job) Budget() *Budget { return j.memory.Budget() }

// memory is the transient memory of a job at this rank.
type memory struct {
	*transient.Memory
	job *Job
}

// memoryNeeds are the needs of transient memory.
func memoryNeeds(c *Config) needs {
	if !c.Memory.on() {
		return needs{}
	}
	m := &memory{}
	m.Memory = transient.New(transient.Config{
		Budget: c.Memory.Budget, ReceiveSize: c.Memory.ReceiveSize,
		Fetches: converted(c.Memory.Fetches, func(r *transient.FetchRequest) *FetchRequest {
			return &FetchRequest{r, m.job}
		}),
		Payloads: converted(c.Memory.Payloads, func(p *transient.Payload) *Payload { return &Payload{p, m.job} }),
	})
	// The number of ranks is known when the segment is laid out: a rank with a refused budget lets the
	// others know, as does one with a segment that cannot be mapped.
	n := needs{memory: m}
	of := c.Memory.ReceiveSize
	n.sized = append(n.sized, func(ranks int) (env.Spec, error) {
		s, err := m.Spec(ranks)
		if err == nil && of > 0 && s.Size < m.Reserve()+pagepool.Size {
			err = &ConfigError{Field: "Memory.ReceiveSize", Value: fmt.Sprint(of),
				Want: fmt.Sprintf("more than %d bytes, which are for what Budget.Reserve serves", m.Reserve())}
		}
		return s, err
	})
	if of > 0 {
		n.handlers = m.Declare
	}
	return n
}

// converted has functions of the program take what others take of package transient.
func converted[F, T any](functions map[string]func(T), convert func(F) T) map[string]func(F) {
	out := make(map[string]func(F), len(functions))
	for name, f := range functions {
		if out[name] = nil; f != nil {
			out[name] = func(v F) { f(convert(v)) }
		}
	}
	return out
}

// open begins with the networks connected, and before messages arrive.
func (m *memory) open(j *Job) {
	pinned := uint64(j.seg.PageSize()) != pagepool.Size
	for _, n := range j.networks.all {
		pinned = pinned || n.Name() != FabricSHM
	}
	m.job = j
	m.Open(view{j}, pinned)
}
