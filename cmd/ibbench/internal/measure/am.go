package measure

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// messages is a rank's part in active messages: the handlers, and what they found. The handlers'
// loops are in am_datapath.go.
type messages struct {
	table *am.Table
	echo  *am.Handler // answers with what it got
	take  *am.Handler // counts what it got
	taken *am.Handler // replies with what take counted
	over  *am.Handler // the peer has nothing more to send

	endpoints []*am.Endpoint // of one network

	begun []am.Stats // when the point began

	posts atomic.Pointer[posts] // of the point, set before a barrier that all messages follow

	ended  atomic.Uint64 // stretches that the peer has ended; it may be ahead of served by several
	served uint64        // stretches that serve has seen the end of
	quit   chan struct{} // holds a token when ended has grown
}

// posts are what arrives at a point.
type posts struct {
	want  []byte        // payload of each
	inbox []inbox       // of each goroutine that sends here
	wrong atomic.Uint64 // those with other bytes than they should have
}

// newMessages registers the handlers: the table is this session's, since several ranks may live in
// one process.
func newMessages() *messages {
	m := &messages{table: am.NewTable(), quit: make(chan struct{}, 1)}
	m.echo = m.table.Handle("ibbench.echo", m.onEcho)
	m.take = m.table.Handle("ibbench.take", m.onTake)
	m.taken = m.table.Handle("ibbench.taken", m.onTaken)
	m.over = m.table.Handle("ibbench.over", m.onOver)
	return m
}

// configure sets the needs of the plan's messages. All ranks have the same plan.
func (m *messages) configure(cfg *conduit.Config, p *plan.Plan) {
	need := p.Messages()
	if need.Endpoints == 0 {
		return
	}
	cfg.Handlers, cfg.MessageEndpoints = m.table, need.Endpoints
	cfg.Messages.MaxMedium = max(need.Medium, defaultMedium)
	cfg.Messages.Sends = need.Depth
}

// defaultMedium is am.Config.MaxMedium where no point needs more.
const defaultMedium = 4096

// open finds the endpoints to the peer: worker i has endpoint i.
func (m *messages) open(workers []*conduit.Worker, peer, n int) error {
	m.endpoints = nil
	for _, w := range workers[:n] {
		l := w.Endpoint(peer)
		if l == nil || slices.Contains(m.endpoints, l) {
			return fmt.Errorf("the job has fewer message endpoints to rank %d than the %d of the plan", peer, n)
		}
		m.endpoints = append(m.endpoints, l)
	}
	return nil
}

// prepareMessages readies the handlers for a point before any rank sends.
func (s *session) prepareMessages(pt plan.Point, a areas, peer int) error {
	m := s.messages
	if m.begun = nil; peer < 0 {
		return s.job.Barrier(s.ctx)
	}
	if err := m.open(s.workers, peer, pt.Lanes); err != nil {
		return err
	}
	m.posts.Store(&posts{want: s.expected(a, peer)[:pt.Size], inbox: make([]inbox, max(pt.Goroutines, 1))})
	m.begun = m.stats()
	return s.job.Barrier(s.ctx)
}

func (m *messages) stats() (all []am.Stats) {
	for _, l := range m.endpoints {
		all = append(all, l.Stats())
	}
	return all
}

// serve handles messages on all endpoints until the peer says that there are no more of a stretch.
func (m *messages) serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var serving sync.WaitGroup
	errs := make([]error, len(m.endpoints))
	for i, l := range m.endpoints {
		serving.Go(func() {
			if err := l.Serve(ctx); ctx.Err() == nil {
				errs[i] = err
				stop()
			}
		})
	}
	for m.ended.Load() <= m.served && ctx.Err() == nil {
		select {
		case <-m.quit:
		case <-ctx.Done():
		}
	}
	m.served++
	cause := context.Cause(ctx)
	stop()
	serving.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return cause
}

// finish lets the peer know that this side has sent everything of a stretch.
func (m *messages) finish(ctx context.Context, peer int) error {
	_, err := m.over.Call(ctx, m.endpoints[0], peer)
	return err
}

// stretch makes the calls of n samples. Payloads of replies are collected in between, since the
// collector is off while the clock runs.
func (c *caller) stretch(l *latency, n int) error {
	if len(c.payload) > 0 {
		runtime.GC()
	}
	if err := l.run(n); err != nil {
		return err
	}
	return c.m.finish(l.ctx, c.peer)
}

// reportCalls ends a point of round trips. Rank 0 has the series.
func (s *session) reportCalls(pt plan.Point, l *latency, series *report.Series) error {
	if series != nil {
		series.Result.Errors = l.calls.wrong
	}
	if err := s.auditMessages(pt, series); err != nil {
		return err
	}
	return s.job.Barrier(s.ctx)
}

// attend ends a stretch of posts: the peer learns that this rank's are over, and this one serves
// until its peer's are.
func (x *throughput) attend() error {
	m := x.s.messages
	if x.me != nil {
		if err := m.finish(x.s.ctx, x.peer); err != nil || !x.pt.Bidi {
			return err
		}
	}
	return m.serve(x.s.ctx)
}

// newPosters makes the goroutines that send, with an endpoint each.
func (x *throughput) newPosters() (all []*stream) {
	m := x.s.messages
	for i := range x.pt.Goroutines {
		p := &poster{m: m, endpoint: m.endpoints[i%len(m.endpoints)], peer: x.peer, id: uint64(i),
			payload: x.s.local[:x.pt.Size]}
		all = append(all, &stream{ctx: x.s.ctx, op: post, posts: p})
	}
	return all
}

// settled is how long the account of an endpoint may take to balance after the last message:
// control messages may be on their way.
const settled = 2 * time.Second

// audit is what each rank sends rank 0 about a point's messages.
type audit struct {
	Wrong uint64
	Books string            // what does not balance
	Sum   map[string]uint64 // counters of the endpoints, those of the warm-up and of the bookkeeping included
}

// counters of an endpoint, by the name of their metric.
func counters(s *am.Stats) map[string]uint64 {
	return map[string]uint64{
		"am.sent": s.Calls + s.Posts, "am.handled": s.Handled, "am.rnr": s.Network.RNR, "am.no_credit": s.NoCredit,
		"am.no_buffer": s.NoBuffer, "am.no_reply": s.NoReply,
		"am.queue_full": s.QueueFull, "am.controls": s.Controls, "am.copies": s.Copies, "am.parks": s.Parks,
		"am.sleeps": s.Sleeps, "am.hand_overs": s.HandOvers,
	}
}

// audited sums up what this rank's endpoints did at the point. The messages have all been handled.
func (m *messages) audited(ctx context.Context) audit {
	a := audit{Wrong: m.posts.Load().wrong.Load(), Sum: make(map[string]uint64)}
	limit := time.Now().Add(settled)
	for i, l := range m.endpoints {
		now := l.Stats()
		err := now.Check()
		for err != nil && now.Network.RNR == 0 && time.Now().Before(limit) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
			now = l.Stats()
			err = now.Check()
		}
		if err != nil {
			a.Books = err.Error()
		}
		was := counters(&m.begun[i])
		for name, n := range counters(&now) {
			a.Sum[name] += n - was[name]
		}
	}
	return a
}

// auditMessages gathers what all ranks found. Rank 0 writes it into the series, if there is one:
// each fault counts as an error.
func (s *session) auditMessages(pt plan.Point, series *report.Series) error {
	var mine audit
	if s.messages.begun != nil {
		mine = s.messages.audited(s.ctx)
	}
	audits, err := gather(s, mine)
	if err != nil || series == nil {
		return err
	}
	sum := counters(new(am.Stats))
	for r, a := range audits {
		for name, n := range a.Sum {
			sum[name] += n
		}
		series.Result.Errors += int64(a.Wrong)
		if a.Books != "" {
			series.Result.Errors++
			series.Notes = append(series.Notes, fmt.Sprintf("ERRORS: rank %d: %s", r, a.Books))
		}
	}
	for name, n := range sum {
		series.Set(name, float64(n))
	}
	if rnr := sum["am.rnr"]; rnr > 0 {
		series.Result.Errors += int64(rnr)
		series.Notes = append(series.Notes, fmt.Sprintf("ERRORS: %s: %s met no receive buffer (RNR)", pt.Name(),
			errtext.Count(rnr, "message")))
	}
	if sent, handled := sum["am.sent"], sum["am.handled"]; sent != handled {
		series.Result.Errors++
		series.Notes = append(series.Notes, fmt.Sprintf("ERRORS: %s: requests sent: %d, handled: %d", pt.Name(), sent,
			handled))
	}
	if lockrank.OneLock {
		series.Notes = append(series.Notes, "this build has one lock for everything (-tags biglock)")
	}
	return nil
}
