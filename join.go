package conduit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/shm"
	"github.com/ibconduit/conduit/internal/spin"
	"github.com/ibconduit/conduit/segment"
)

// Join makes this process a rank of the job that its launcher started: ibrun, mpiexec, srun, or
// what else set IBCONDUIT_RANK, IBCONDUIT_SIZE and IBCONDUIT_ADDR (package bootstrap has the list).
// Without a launcher it is a job of one rank. Join is collective, bounded by Config.JoinTimeout and
// ctx, and leaves nothing behind when it fails.
func Join(ctx context.Context, cfg Config) (*Job, error) {
	return joinFor(context.Background(), ctx, cfg)
}

// joinFor is Join for a rank with waits that life bounds. Handlers may run before it returns.
func joinFor(life, ctx context.Context, cfg Config) (*Job, error) {
	given := cfg.Bootstrap
	cfg, err := cfg.withDefaults()
	var n needs
	if err == nil {
		n, err = cfg.needs()
	}
	if err != nil {
		if given != nil {
			err = errors.Join(err, given.Close())
		}
		return nil, err
	}
	// The bootstrap's own time ends first, so that its verdict on which ranks are missing reaches all.
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.JoinTimeout+min(verdictGrace, math.MaxInt64-cfg.JoinTimeout),
		fmt.Errorf("not all ranks joined within %v (IBCONDUIT_JOIN_TIMEOUT): %w", cfg.JoinTimeout, context.DeadlineExceeded))
	defer cancel()
	j := &Job{cfg: cfg, life: life, needs: n, heaps: n.heaps, memory: n.memory, members: newMembership(cfg.Logger),
		workers: newWorkers(), latencies: newLatencies(cfg.Latency)}
	j.messages, j.library = messagesOf(&j.cfg), libraryOf(&j.cfg, n.handlers)
	if err := (&joining{Job: j}).join(ctx); err != nil {
		failed := fmt.Errorf("conduit: join: %w", err)
		if j.boot != nil { // first: the end of a connection would not say why
			failed = errors.Join(failed, j.boot.Fail(err))
		}
		busy, err := j.release()
		return nil, errors.Join(failed, busy, err)
	}
	return j, nil
}

// verdictGrace is how much longer than JoinTimeout a rank waits for the others' verdict.
const verdictGrace = 5 * time.Second

// joining is a Join in progress.
type joining struct {
	*Job
	shm         *shm.Network // nil where shared memory is not to be used
	hellos      []hello      // by rank, as the rest
	unreachable []error      // why shared memory does not reach a rank
	far         int          // the first such rank, or -1
	plan        *segment.Plan
}

// handlers is how many handlers of active messages there were when the ranks compared them.
func (j *joining) handlers() uint64 { return j.hellos[j.rank].messages.handlers }

// endpoints is how many message endpoints the job has on each network: the program's first, then
// the library's.
func (j *joining) endpoints() int {
	h := &j.hellos[j.rank]
	return int(h.messages.endpoints + h.library.endpoints)
}

func (j *joining) join(ctx context.Context) (err error) {
	if err = j.meet(ctx); err != nil {
		return err
	}
	j.rank, j.size = j.boot.Rank(), j.boot.Size()
	j.members.rank, j.members.size = j.rank, j.size
	if j.size > MaxRanks {
		return fmt.Errorf("a job of %d ranks; at most %d can be addressed", j.size, MaxRanks)
	}
	openChecker(j.Job)
	if j.layout, err = j.needs.layout(j.size); err != nil {
		return j.abstain(ctx, err)
	}
	if err := j.connect(ctx); err != nil {
		return err
	}
	j.networks.copyMax = math.MaxInt
	for _, n := range j.networks.all {
		j.networks.copyMax = min(j.networks.copyMax, n.Limits().CopyMax)
	}
	if j.coll, err = coll.Open(view{j.Job}, collConfig(j.Job)); err != nil {
		return err
	}
	if err := j.heaps.open(j.Job); err != nil {
		return err
	}
	j.memory.open(j.Job)
	if err := j.openEndpoints(); err != nil { // last: its handlers use what the parts have opened
		return err
	}
	lost := j.boot.Lost()
	j.watching.Go(func() { j.members.watch(lost) })
	// No rank may use a segment before its owner is ready to close it in order.
	if err := j.boot.Barrier(ctx); err != nil {
		return err
	}
	j.cfg.Logger.Info("joined", "rank", j.rank, "size", j.size, "job", j.boot.JobID(), "bootstrap", j.boot.Name(),
		"networks", j.networks.names(), "handlers", j.handlers(), "messageEndpoints", len(j.messages.all),
		"libraryHandlers", j.hellos[j.rank].library.handlers,
		"segment", j.seg.Len(), "page", j.seg.PageSize())
	return nil
}

// mapSegment maps the segment as planned. The third exchange says that all ranks have theirs, and
// how large those are.
func (j *joining) mapSegment(ctx context.Context) (err error) {
	if j.seg, err = j.plan.Map(); err == nil && j.shm != nil {
		err = j.shm.SetSegment(j.seg)
	}
	if err != nil {
		return j.abstain(ctx, err)
	}
	for _, note := range j.seg.Notes() {
		j.cfg.Logger.Info("segment", "note", note)
	}
	sizes, err := j.boot.Exchange(ctx, binary.AppendUvarint([]byte{helloVersion}, uint64(len(j.seg.User()))))
	if err != nil {
		return err
	}
	for r, b := range sizes {
		if j.hellos[r].user, err = decodeSize(b); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
		j.networks.routes[r].user = j.hellos[r].user
	}
	return j.heaps.place(&j.cfg, j.hellos)
}

// abstain sends the others, in the place of a hello or of a size, why this rank cannot take part:
// they fail with its name and reason instead of for a rank that went away. It returns the reason.
func (j *joining) abstain(ctx context.Context, why error) error {
	if j.size > 1 {
		ctx, cancel := context.WithTimeout(ctx, verdictGrace)
		defer cancel()
		_, _ = j.boot.Exchange(ctx, abstention(why))
	}
	return why
}

// connect finds out which rank is reached by which network, and maps the segment. Four exchanges at
// most: what am I; does any rank need verbs, and what do I take of my host; how large is my
// segment; and if verbs are needed the device's addresses. The outcome is the same on every rank
// since it is computed from the same answers.
func (j *joining) connect(ctx context.Context) error {
	mine, err := newHello(j.Job)
	if err != nil {
		return j.abstain(ctx, err)
	}
	if j.cfg.Fabric != FabricIBV {
		j.shm, err = shm.New(shm.Config{Rank: j.rank, Size: j.size, Job: j.boot.JobID(),
			Sharing: &j.sharing, OnDown: j.members.die, OnLeft: j.members.leave})
		if err != nil {
			return j.abstain(ctx, err)
		}
		j.addNetwork(j.shm)
		mine.shm = j.shm.Addr()
	}
	if j.hellos, err = j.exchangeHellos(ctx, mine); err != nil {
		return err
	}
	where := make([][]byte, j.size)
	for r := range where {
		where[r] = j.hellos[r].where
	}
	j.sharing.SetRanks(spin.PerProcessor(where, j.rank, spin.Quota()), j.cfg.together != nil)
	j.unreachable, j.far = make([]error, j.size), -1
	for r, h := range j.hellos {
		j.memory.Takes(r, h.payloads)
		if j.shm != nil {
			if j.unreachable[r] = j.shm.Reach(r, h.shm); j.unreachable[r] != nil && j.far < 0 {
				j.far = r
			}
		}
	}
	if j.far >= 0 && j.cfg.Fabric == FabricSHM {
		return fmt.Errorf("rank %d over shared memory: %w; use Fabric auto or ibv", j.far, j.unreachable[j.far])
	}
	verbs, err := j.agree(ctx)
	if err == nil {
		err = j.mapSegment(ctx)
	}
	if err == nil && j.shm != nil {
		err = j.connectSHM(ctx)
	}
	if err == nil && verbs {
		err = j.connectVerbs(ctx)
	}
	return err
}

// addNetwork brings a network in, which is informed of deaths from now on.
func (j *joining) addNetwork(n fabric.Network) {
	j.networks.all = append(j.networks.all, n)
	j.members.informs(n.PeerDown)
}

// connectSHM gives up when the bootstrap reports a rank that died or failed: it does not come, and
// nothing else would say so before the time to join is over.
func (j *joining) connectSHM(ctx context.Context) error {
	addrs := make([][]byte, j.size)
	for r := range addrs {
		if j.unreachable[r] == nil {
			addrs[r] = j.hellos[r].shm
			rt := &j.networks.routes[r]
			rt.data, rt.amo, rt.cpuAtomics = j.shm, j.shm, true
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	reported := make(chan struct{})
	var lost error
	go func() {
		defer close(reported)
		select {
		case l, ok := <-j.boot.Lost():
			if ok {
				j.members.die(l.Rank, l.Cause)
				lost = l.Cause
				cancel(lost)
			}
		case <-ctx.Done():
		}
	}()
	err := j.shm.Connect(ctx, addrs, j.boot.Exchange)
	if peerEnded(err) { // for a death that it knows, or because it failed: the report may still be on its way
		select {
		case <-reported:
		case <-time.After(time.Second):
		}
	}
	cancel(nil)
	<-reported
	if err != nil && lost != nil && !errors.Is(err, lost) {
		return fmt.Errorf("%w: %w", lost, err)
	}
	return err
}

// peerEnded reports whether err is what one sees of a peer's end.
func peerEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// connectVerbs brings the device in for the ranks that shared memory does not
// reach. Atomics then go through the device to every rank, also of this host:
// a device's atomics and the processor's on one word would not be atomic to
// each other (IBTA vol 1 §9.4.5), unless every device says so.
func (j *joining) connectVerbs(ctx context.Context) error {
	began := time.Now()
	net, err := newIBV(j.Job, j.endpoints())
	took := time.Since(began)
	var mine []byte
	if err == nil {
		j.addNetwork(net)
		mine = deviceOf(net)
	} else {
		mine = noDevice(err)
		if j.far >= 0 {
			err = fmt.Errorf("rank %d is not reachable over shared memory (%w), and verbs cannot be used: %w", j.far,
				j.unreachable[j.far], err)
		}
	}
	addrs, xerr := j.boot.Exchange(ctx, mine)
	if xerr != nil && took > j.cfg.JoinTimeout/2 { // not the other ranks were slow
		xerr = fmt.Errorf("opening the device and registering the segment of %d bytes took %v of the %v to join: %w",
			j.seg.Len(), took.Round(time.Millisecond), j.cfg.JoinTimeout, xerr)
	}
	if err = errors.Join(err, xerr); err != nil {
		return err
	}
	global, err := openDevices(addrs)
	if err != nil {
		return err
	}
	for r := range addrs {
		if err := net.Reach(r, addrs[r]); err != nil {
			return fmt.Errorf("rank %d over verbs: %w", r, err)
		}
		rt := &j.networks.routes[r]
		if rt.data == nil {
			rt.data, rt.net = net, len(j.networks.all)-1
		}
		if j.shm == nil || !global || rt.amo == nil {
			rt.amo, rt.amoNet, rt.cpuAtomics = net, len(j.networks.all)-1, false
		}
	}
	return net.Connect(ctx, addrs, j.boot.Exchange)
}

// setWhereHostsDiffer is the remedy where a default comes from the host.
const setWhereHostsDiffer = "the default follows GOMAXPROCS, and so the quota of the control group: set it where " +
	"hosts differ"

func (j *joining) exchangeHellos(ctx context.Context, mine hello) ([]hello, error) {
	blobs, err := j.boot.Exchange(ctx, mine.encode())
	if err != nil {
		return nil, err
	}
	j.networks.routes = make([]route, j.size)
	all := make([]hello, j.size)
	for r, b := range blobs {
		if all[r], err = decodeHello(b); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
		// Compared with rank 0 so that every rank prints the same.
		switch first := all[0]; {
		case all[r].fabric != first.fabric:
			return nil, fmt.Errorf("rank %d was configured with fabric %q, rank 0 with %q: they must be equal "+
				"(Config.Fabric, IBCONDUIT_FABRIC)", r, all[r].fabric, first.fabric)
		case all[r].workers != first.workers:
			return nil, fmt.Errorf("rank %d was configured with %d workers, rank 0 with %d: they must be equal "+
				"(Config.Workers, IBCONDUIT_WORKERS; %s)",
				r, all[r].workers, first.workers, setWhereHostsDiffer)
		}
	}
	if err := j.compareLayouts(ctx, all); err != nil {
		return nil, err
	}
	if err := j.compareShared(ctx, all); err != nil { // in front of the handlers, which only a heap has
		return nil, err
	}
	err = j.compareHandlers(ctx, &j.messages, all, func(h *hello) *protocol { return &h.messages })
	if err == nil {
		err = j.compareHandlers(ctx, &j.library, all, func(h *hello) *protocol { return &h.library })
	}
	return all, err
}
