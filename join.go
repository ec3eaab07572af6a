package conduit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/shm"
	"github.com/ibconduit/conduit/segment"
)

// Join makes this process a rank of the job that its launcher started: ibrun,
// mpiexec, srun, or whoever set IBCONDUIT_RANK, IBCONDUIT_SIZE and
// IBCONDUIT_ADDR (package bootstrap has the list). Alone it is a job of one
// rank. Join is collective, bounded by Config.JoinTimeout and ctx, and leaves nothing
// behind when it fails.
func Join(ctx context.Context, cfg Config) (*Job, error) {
	given := cfg.Bootstrap
	cfg, err := cfg.withDefaults()
	if err != nil {
		if given != nil {
			err = errors.Join(err, given.Close())
		}
		return nil, err
	}
	// The bootstrap's own time ends first, so that its verdict on who is missing reaches everybody.
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.JoinTimeout+min(verdictGrace, math.MaxInt64-cfg.JoinTimeout),
		fmt.Errorf("not all ranks joined within %v (IBCONDUIT_JOIN_TIMEOUT): %w", cfg.JoinTimeout, context.DeadlineExceeded))
	defer cancel()
	j := &Job{cfg: cfg, life: context.Background(), workers: make(map[*Worker]struct{}), retired: make(Stats), closing: make(chan struct{}),
		told: make(map[int]bool), news: make(chan struct{})}
	if err := j.join(ctx); err != nil {
		failed := fmt.Errorf("conduit: join: %w", err)
		if j.boot != nil { // first: the end of a connection would not say why
			failed = errors.Join(failed, j.boot.Fail(err))
		}
		return nil, errors.Join(failed, j.release())
	}
	return j, nil
}

// verdictGrace is how much longer than JoinTimeout a rank listens to what the
// others found out.
const verdictGrace = 5 * time.Second

func (j *Job) join(ctx context.Context) (err error) {
	if j.boot = j.cfg.Bootstrap; j.boot == nil {
		j.boot, err = bootstrap.New(ctx, bootstrap.Options{Lookup: j.cfg.Getenv, Timeout: j.cfg.JoinTimeout, Log: j.cfg.Logger})
		if err != nil {
			return err
		}
	}
	j.rank, j.size = j.boot.Rank(), j.boot.Size()
	if j.size > MaxRanks {
		return fmt.Errorf("a job of %d ranks; at most %d can be addressed", j.size, MaxRanks)
	}
	if err := j.mapSegment(); err != nil {
		return j.excuse(ctx, err)
	}
	if err := j.connect(ctx); err != nil {
		return err
	}
	if j.coll, err = newCollectives(j); err != nil {
		return err
	}
	j.copyMax = j.networks[0].Limits().CopyMax
	for _, n := range j.networks {
		j.copyMax = min(j.copyMax, n.Limits().CopyMax)
	}
	if err := j.openLanes(); err != nil {
		return err
	}
	j.watchers.Add(1)
	go j.watch(j.boot.Lost())
	// Nobody may use a segment before its owner is ready to close it in order.
	if err := j.boot.Barrier(ctx); err != nil {
		return err
	}
	j.cfg.Logger.Info("joined", "rank", j.rank, "size", j.size, "job", j.boot.JobID(), "bootstrap", j.boot.Name(),
		"networks", j.networkNames(), "handlers", j.handlers, "messageLanes", len(j.lanes), "segment", j.seg.Len(), "page", j.seg.PageSize())
	return nil
}

func (j *Job) networkNames() (names []string) {
	for _, n := range j.networks {
		names = append(names, n.Name())
	}
	return names
}

func (j *Job) mapSegment() (err error) {
	j.seg, err = segment.Map(segment.Config{
		Size:      j.cfg.SegmentSize,
		Share:     j.cfg.SegmentShare,
		System:    systemBytes,
		HugePages: j.cfg.HugePages,
		Shared:    j.cfg.Fabric != FabricIBV,
		Locked:    j.cfg.Fabric == FabricIBV,
	})
	if err != nil {
		return err
	}
	for _, note := range j.seg.Notes() {
		j.cfg.Logger.Info("segment", "note", note)
	}
	return nil
}

// connect finds out who reaches whom, and by what. Three exchanges at most:
// who am I; does anybody need verbs; and if so the device's addresses. The
// outcome is the same on every rank since it is computed from the same answers.
func (j *Job) connect(ctx context.Context) error {
	hello := hello{user: uint64(len(j.seg.User())), system: j.seg.SystemOffset(), workers: uint64(j.cfg.Workers), fabric: j.cfg.Fabric}
	if err := hello.describe(&j.cfg); err != nil {
		return j.excuse(ctx, err)
	}
	j.handlers = int(hello.handlers)
	var local *shm.Network
	if j.cfg.Fabric != FabricIBV {
		var err error
		if local, err = j.newSHM(); err != nil {
			return j.excuse(ctx, err)
		}
		j.addNetwork(local)
		hello.shm = local.Addr()
	}
	hellos, err := j.exchangeHellos(ctx, hello)
	if err != nil {
		return err
	}
	unreachable := make([]error, j.size)
	far := -1
	for r := range hellos {
		j.routes[r].user, j.routes[r].system = hellos[r].user, hellos[r].system
		if local != nil {
			if unreachable[r] = local.Reach(r, hellos[r].shm); unreachable[r] != nil && far < 0 {
				far = r
			}
		}
	}
	if far >= 0 && j.cfg.Fabric == FabricSHM {
		return fmt.Errorf("rank %d over shared memory: %w; use Fabric auto or ibv", far, unreachable[far])
	}
	verbs := j.cfg.Fabric == FabricIBV
	if !verbs {
		if verbs, err = j.anybody(ctx, far >= 0); err != nil {
			return err
		}
	}
	if local != nil {
		addrs := make([][]byte, j.size)
		for r := range addrs {
			if unreachable[r] == nil {
				addrs[r] = hellos[r].shm
				j.routes[r].data, j.routes[r].amo = local, local
				j.routes[r].cpuAtomics = true
			}
		}
		if err := j.connectLocal(ctx, local, addrs); err != nil {
			return err
		}
	}
	if verbs {
		return j.connectVerbs(ctx, local != nil, far, unreachable)
	}
	return nil
}

// connectLocal gives up when the bootstrap tells of a rank that died or failed: it does not come, and nothing else would say so
// before the time to join is over.
func (j *Job) connectLocal(ctx context.Context, local *shm.Network, addrs [][]byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	listened := make(chan struct{})
	var lost error
	go func() {
		defer close(listened)
		select {
		case l, ok := <-j.boot.Lost():
			if ok {
				j.markDown(l.Rank, l.Cause)
				lost = l.Cause
				cancel(lost)
			}
		case <-ctx.Done():
		}
	}()
	err := local.Connect(ctx, addrs, j.boot.Exchange)
	if leftByPeer(err) { // for a death of which it has heard, or because it failed: that word may still be on its way
		select {
		case <-listened:
		case <-time.After(time.Second):
		}
	}
	cancel(nil)
	<-listened
	if err != nil && lost != nil && !errors.Is(err, lost) {
		return fmt.Errorf("%w: %w", lost, err)
	}
	return err
}

// leftByPeer reports whether err is what one sees of a peer's end.
func leftByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// excuse tells the others, in the place of a hello, why this rank cannot take part: they fail by its name and reason
// instead of for a rank that went away. It returns the reason.
func (j *Job) excuse(ctx context.Context, why error) error {
	if j.size > 1 {
		ctx, cancel := context.WithTimeout(ctx, verdictGrace)
		defer cancel()
		text := why.Error()
		_, _ = j.boot.Exchange(ctx, append([]byte{helloExcuse}, text[:min(len(text), maxReason)]...))
	}
	return why
}

func (j *Job) newSHM() (*shm.Network, error) {
	return shm.New(shm.Config{Rank: j.rank, Size: j.size, Segment: j.seg, Job: j.boot.JobID(),
		OnDown: j.markDown, OnLeft: j.markLeft})
}

// connectVerbs brings the device in for the ranks that shared memory does not
// reach. Atomics then go through the device to every rank, also of this host:
// a device's atomics and the processor's on one word would not be atomic to
// each other (IBTA vol 1 §9.4.5), unless every device says so.
func (j *Job) connectVerbs(ctx context.Context, mixed bool, far int, why []error) error {
	began := time.Now()
	net, err := newIBV(j)
	took := time.Since(began)
	var mine []byte
	if err == nil {
		j.addNetwork(net)
		mine = deviceOf(net)
	} else {
		mine = noDevice(err)
		if far >= 0 {
			err = fmt.Errorf("rank %d is not reachable over shared memory (%w), and verbs cannot be used: %w", far, why[far], err)
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
		rt := &j.routes[r]
		if rt.data == nil {
			rt.data, rt.net = net, len(j.networks)-1
		}
		if !mixed || !global || rt.amo == nil {
			rt.amo, rt.cpuAtomics = net, false
		}
	}
	return net.Connect(ctx, addrs, j.boot.Exchange)
}

// What a rank says of its device: one byte, and then its address, or why it has none. A rank without a device says so
// in the exchange so that all ranks fail, by name and with the reason.
const (
	deviceLocal   = iota // its atomics are atomic among themselves
	deviceGlobal         // also with the processor's
	deviceMissing        // followed by the reason
)

// maxReason bounds what of a reason travels.
const maxReason = 512

func deviceOf(n fabric.Network) []byte {
	kind := byte(deviceLocal)
	if n.Limits().CPUAtomics {
		kind = deviceGlobal
	}
	return append([]byte{kind}, n.Addr()...)
}

func noDevice(why error) []byte {
	text := why.Error()
	return append([]byte{deviceMissing}, text[:min(len(text), maxReason)]...)
}

// openDevices leaves the addresses in what the ranks said. global: the atomics of all devices are atomic with the processor's.
func openDevices(said [][]byte) (global bool, err error) {
	global = true
	for r, s := range said {
		switch {
		case len(s) == 0 || s[0] > deviceMissing:
			return false, fmt.Errorf("rank %d: malformed word on its verbs device: %.16x", r, s)
		case s[0] == deviceMissing:
			return false, fmt.Errorf("rank %d has no usable verbs device: %s", r, printable(s[1:]))
		}
		global = global && s[0] == deviceGlobal
		said[r] = s[1:]
	}
	return global, nil
}

// printable is text of another rank, which may be anything, for an error.
func printable(b []byte) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(string(b[:min(len(b), maxReason)]), ""))
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// anybody is a collective or.
func (j *Job) anybody(ctx context.Context, mine bool) (bool, error) {
	if j.size == 1 {
		return mine, nil
	}
	votes, err := j.boot.Exchange(ctx, []byte{boolByte(mine)})
	if err != nil {
		return false, err
	}
	for r, v := range votes {
		switch {
		case bytes.Equal(v, []byte{1}):
			return true, nil
		case !bytes.Equal(v, []byte{0}):
			return false, fmt.Errorf("rank %d: malformed vote %x", r, v)
		}
	}
	return false, nil
}

// hello is what every rank tells every other first.
type hello struct {
	user, system uint64 // bytes of the user's segment; offset of the system area
	workers      uint64
	handlers     uint64   // how many; 0: no messages, and what follows is 0 too
	lanes        uint64   // for messages
	hash         uint64   // of the handlers
	terms        []uint64 // am.Config.Terms
	fabric       string
	shm          []byte // address of fabric/shm, empty without
}

// helloVersion is the wire version of hello:
//
//	1 byte    version
//	uvarint   user, system, workers, handlers, lanes, hash
//	uvarint   length of terms, then each of them
//	uvarint   length of fabric, then its bytes
//	rest      shm
//
// or, from a rank that cannot take part:
//
//	1 byte    helloExcuse
//	rest      the reason, text
const (
	helloVersion = 2
	helloExcuse  = 0xff
)

// maxTerms bounds what a hello makes this rank keep.
const maxTerms = 64

func (h *hello) numbers() []*uint64 {
	return []*uint64{&h.user, &h.system, &h.workers, &h.handlers, &h.lanes, &h.hash}
}

func (h hello) encode() []byte {
	b := []byte{helloVersion}
	for _, v := range h.numbers() {
		b = binary.AppendUvarint(b, *v)
	}
	b = binary.AppendUvarint(b, uint64(len(h.terms)))
	for _, v := range h.terms {
		b = binary.AppendUvarint(b, v)
	}
	b = binary.AppendUvarint(b, uint64(len(h.fabric)))
	b = append(b, h.fabric...)
	return append(b, h.shm...)
}

func decodeHello(b []byte) (h hello, err error) {
	if len(b) > 0 && b[0] == helloExcuse {
		return h, fmt.Errorf("it cannot take part: %s", printable(b[1:]))
	}
	if len(b) == 0 || b[0] != helloVersion {
		return h, fmt.Errorf("hello of version %v, this is version %d: mixed binaries", b[:min(len(b), 1)], helloVersion)
	}
	b = b[1:]
	next := func() (v uint64) {
		v, used := binary.Uvarint(b)
		if used <= 0 {
			err, used = errors.New("truncated hello"), 0
		}
		b = b[used:]
		return v
	}
	for _, v := range h.numbers() {
		*v = next()
	}
	if n := next(); n <= maxTerms {
		for range n {
			h.terms = append(h.terms, next())
		}
	} else if err == nil {
		err = fmt.Errorf("hello with %d terms", n)
	}
	n := next()
	if err == nil && n > uint64(len(b)) {
		err = errors.New("truncated hello")
	}
	if err != nil {
		return hello{}, err
	}
	h.fabric, h.shm = string(b[:n]), b[n:]
	if h.user > h.system || h.system > 1<<62 {
		return h, fmt.Errorf("hello with a system area at %d behind %d bytes", h.system, h.user)
	}
	return h, nil
}

// setWhereHostsDiffer is the remedy where a default comes from the host.
const setWhereHostsDiffer = "the default follows GOMAXPROCS, and so the quota of the control group: set it where hosts differ"

func (j *Job) exchangeHellos(ctx context.Context, mine hello) ([]hello, error) {
	blobs, err := j.boot.Exchange(ctx, mine.encode())
	if err != nil {
		return nil, err
	}
	j.routes = make([]route, j.size)
	all := make([]hello, j.size)
	for r, b := range blobs {
		if all[r], err = decodeHello(b); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
		// Compared with rank 0 so that every rank prints the same.
		switch first := all[0]; {
		case all[r].fabric != first.fabric:
			return nil, fmt.Errorf("rank %d was configured with fabric %q, rank 0 with %q: they must be equal (Config.Fabric, IBCONDUIT_FABRIC)", r, all[r].fabric, first.fabric)
		case all[r].workers != first.workers:
			return nil, fmt.Errorf("rank %d was configured with %d workers, rank 0 with %d: they must be equal (Config.Workers, IBCONDUIT_WORKERS; %s)",
				r, all[r].workers, first.workers, setWhereHostsDiffer)
		}
	}
	return all, j.compareHandlers(ctx, all)
}
