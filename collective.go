package conduit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// The region of the collective operations in each segment:
//
//	offset  bytes           meaning
//	0       32 x 64         barrier: word r is written by the rank 2^r before, with
//	                        the number of the barrier it is in; one cache line each
//	4096    8               broadcast: the number of the chunk that lies in the box
//	8184    8               broadcast: how many bytes the root sends in all
//	8192    64 KiB          the box: a chunk of a broadcast or an all-gather
const (
	sysRounds    = 32
	sysLine      = 64
	sysChunkWord = 4096
	sysTotal     = sysBox - 8 // in front of the box: both travel in one put
	sysBox       = 8192
	sysBoxSize   = 64 << 10
	systemBytes  = sysBox + sysBoxSize
)

// collRegion is the name of that region.
const collRegion = "conduit.coll"

// maxGather bounds what an all-gather returns, in bytes: a length that arrives
// is not a reason to run out of memory.
const maxGather = 1 << 32

// collectives are the operations that every rank takes part in. They run over
// lanes of their own and touch nothing but their region.
type collectives struct {
	job   *Job
	lanes map[fabric.Network]fabric.Lane
	wait  fabric.Lane // waits for words that peers write

	// turn holds a token while no collective runs; operations of one rank are
	// serialised by it.
	turn     chan struct{}
	barriers uint64 // barriers entered
	chunks   uint64 // broadcast chunks received or sent
	word     []byte // eight bytes to put from
	area     []byte // this rank's region
	at       uint64 // its offset, and that of all ranks'
	closed   bool
	broken   error
}

func newCollectives(j *Job) (*collectives, error) {
	c := &collectives{job: j, lanes: make(map[fabric.Network]fabric.Lane), turn: make(chan struct{}, 1), word: make([]byte, 8)}
	c.area, c.at = j.seg.Region(collRegion)
	for _, n := range j.networks.all {
		l, err := n.NewLane()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lane for collective operations: %w", err), c.closeLanes())
		}
		c.lanes[n] = l
		c.wait = l
	}
	c.turn <- struct{}{}
	return c, nil
}

// close ends the collectives once the one that runs has noticed that the job
// is closing. Job.Stats reads the lanes' counters until they are retired: both
// happen under the job's lock.
func (c *collectives) close() error {
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	c.closed = true
	c.job.workers.mu.Lock()
	defer c.job.workers.mu.Unlock()
	c.job.workers.retired.merge(c.stats())
	return c.closeLanes()
}

func (c *collectives) closeLanes() error {
	var first error
	for n, l := range c.lanes {
		if err := l.Close(); err != nil && first == nil {
			first = err
		}
		delete(c.lanes, n)
	}
	return first
}

func (c *collectives) stats() Stats {
	s := make(Stats)
	for n, l := range c.lanes {
		s.add(n.Name(), l.Counters().Load())
	}
	return s
}

func (c *collectives) to(rank int) fabric.Lane { return c.lanes[c.job.networks.routes[rank].data] }

func (c *collectives) wordAt(off uint64) *uint64 {
	return (*uint64)(unsafe.Pointer(&c.area[off]))
}

// errTurn is why an operation did not begin.
var errTurn = errors.New("waiting for another collective operation of this rank")

// run gives fn its turn. Once one was abandoned, ranks disagree about how many
// there were, and all later ones fail.
func (c *collectives) run(ctx context.Context, op string, fn func() error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("conduit: %s: %w", op, context.Cause(ctx))
	}
	lockrank.CheckCommunication(op)
	if c.job.cfg.Handlers.InHandler() {
		return fmt.Errorf("conduit: %s: %w", op, am.ErrInHandler)
	}
	select {
	case <-c.turn:
	case <-ctx.Done():
		return fmt.Errorf("conduit: %s: %w: %w", op, errTurn, context.Cause(ctx))
	}
	defer func() { c.turn <- struct{}{} }()
	if c.closed {
		return errClosed(op, "job")
	}
	if c.broken != nil {
		return fmt.Errorf("conduit: %s: %w: %w", op, ErrCollective, c.broken)
	}
	if err := c.job.members.first(op); err != nil {
		return err
	}
	defer c.job.learned()
	if err := fn(); err != nil {
		c.broken = err
		return fmt.Errorf("conduit: %s: %w", op, err)
	}
	return nil
}

// await blocks until a word of this rank's region is at least v.
func (c *collectives) await(ctx context.Context, off, v uint64) error {
	w := c.wordAt(off)
	if atomic.LoadUint64(w) >= v {
		return nil
	}
	return c.wait.WaitWord(ctx, w, fabric.GreaterEqual, v, c.stop)
}

// stop ends a wait that cannot come to its end.
func (c *collectives) stop() error {
	if err := c.job.checkOpen(); err != nil { // first: where the job was cancelled others leave for that
		return err
	}
	return c.job.members.first("wait")
}

// put8 starts a put of one word into another rank's region.
func (c *collectives) put8(rank int, off, v uint64) error {
	binary.NativeEndian.PutUint64(c.word, v)
	_, err := c.to(rank).Put(rank, c.at+off, c.word, fabric.Implicit)
	return err
}

func (c *collectives) flush(ctx context.Context) error {
	for _, l := range c.lanes {
		if err := l.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// disseminate is a dissemination barrier (Hensgen, Finkel, Manber 1988): in round r every rank
// writes a word of the one 2^r after it and waits for the one 2^r before. The words only grow, so a
// fast rank's next barrier disturbs no other rank.
func (c *collectives) disseminate(ctx context.Context) error {
	n := c.job.size
	c.barriers++
	for r := range bits.Len(uint(n - 1)) {
		to := (c.job.rank + 1<<r) % n
		off := uint64(r * sysLine)
		if err := c.put8(to, off, c.barriers); err != nil {
			return err
		}
		if err := c.await(ctx, off, c.barriers); err != nil {
			return err
		}
	}
	return nil
}

func (c *collectives) barrier(ctx context.Context, op string) error {
	return c.run(ctx, op, func() error { return c.disseminate(ctx) })
}

// last is the barrier of Close. Unlike the others it does not mind that an earlier
// collective operation was abandoned.
func (c *collectives) last(ctx context.Context) error {
	select {
	case <-c.turn: // also when ctx has ended: the error is to name what is waited for
	default:
		select {
		case <-c.turn:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errTurn, context.Cause(ctx))
		}
	}
	defer func() { c.turn <- struct{}{} }()
	if err := c.job.members.first("close"); err != nil {
		return err
	}
	return c.job.boot.Barrier(ctx)
}

// Barrier blocks until every rank has called it. It does not complete a worker's implicit
// operations: Flush them first where that matters. When a rank dies, or ctx ends the wait, while
// this rank takes part, the error says so and later collective operations fail with ErrCollective.
// Where the death was known before, they fail with its *PeerDownError.
func (j *Job) Barrier(ctx context.Context) error { return j.coll.barrier(ctx, "barrier") }

// Broadcast copies root's buf into every rank's buf, which must be equally long
// everywhere. A rank with a buf of another
// length gets a *LengthError; its buf is unchanged, the others have theirs, and the job goes on.
func (j *Job) Broadcast(ctx context.Context, root int, buf []byte) error {
	if root < 0 || root >= j.size {
		return &RankError{Op: "broadcast", Rank: root, Size: j.size}
	}
	total := uint64(len(buf))
	err := j.coll.run(ctx, "broadcast", func() (err error) {
		for at := uint64(0); err == nil && (at == 0 || at < total); at += sysBoxSize {
			total, err = j.coll.broadcastChunk(ctx, root, buf, at)
		}
		return err
	})
	if err == nil && total != uint64(len(buf)) {
		err = &LengthError{Op: "broadcast", Rank: j.rank, Len: uint64(len(buf)), Root: root, RootLen: total}
	}
	return err
}

// broadcastChunk sends one box full, what buf has from at on, down a binomial tree,
// and returns how many bytes the root sends in all. A rank with another length
// passes on what it gets and keeps nothing. The barrier at the end frees the boxes
// for the next.
func (c *collectives) broadcastChunk(ctx context.Context, root int, buf []byte, at uint64) (total uint64, err error) {
	n := c.job.size
	me := (c.job.rank - root + n) % n // the root is 0 in the tree
	c.chunks++
	if me == 0 {
		total = uint64(len(buf))
		binary.NativeEndian.PutUint64(c.area[sysTotal:], total)
		copy(c.area[sysBox:], piece(buf, int(at)))
	} else {
		if err := c.await(ctx, sysChunkWord, c.chunks); err != nil {
			return 0, err
		}
		if total = binary.NativeEndian.Uint64(c.area[sysTotal:]); total == uint64(len(buf)) {
			copy(piece(buf, int(at)), c.area[sysBox:])
		}
	}
	box := c.area[sysTotal : sysBox+min(total-min(at, total), sysBoxSize)]
	// A node's children differ from it in one bit below its lowest set bit.
	low := bits.TrailingZeros(uint(me))
	if me == 0 {
		low = bits.Len(uint(n - 1))
	}
	for b := low - 1; b >= 0; b-- {
		if child := me + 1<<b; child < n {
			if err := c.give((child+root)%n, box); err != nil {
				return 0, err
			}
		}
	}
	if err := c.flush(ctx); err != nil {
		return 0, err
	}
	return total, c.disseminate(ctx)
}

// give puts a chunk with the total, and then its number, into a rank's box.
func (c *collectives) give(rank int, box []byte) error {
	if _, err := c.to(rank).Put(rank, c.at+sysTotal, box, fabric.Implicit); err != nil {
		return err
	}
	return c.put8(rank, sysChunkWord, c.chunks)
}

// AllGather returns every rank's blob, indexed by rank. Lengths may differ. Together they have at
// most 4 GiB; with more it fails on every rank, and later collective operations with ErrCollective.
func (j *Job) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	all := make([][]byte, j.size)
	err := j.coll.run(ctx, "all-gather", func() error {
		lens := make([][]byte, j.size)
		for r := range lens {
			lens[r] = make([]byte, 8)
		}
		binary.LittleEndian.PutUint64(lens[j.rank], uint64(len(mine)))
		if err := j.coll.gather(ctx, lens); err != nil {
			return err
		}
		var total uint64
		for r := range all {
			n := binary.LittleEndian.Uint64(lens[r])
			if total += n; n > maxGather || total > maxGather {
				return fmt.Errorf("the ranks' blobs have more than %d bytes in all, rank %d's blob %d", maxGather, r, n)
			}
			all[r] = make([]byte, n)
		}
		copy(all[j.rank], mine)
		return j.coll.gather(ctx, all)
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// gather fills blobs, of lengths that every rank knows, from their ranks' boxes: each rank copies
// its next piece into its own box and reads the others'.
func (c *collectives) gather(ctx context.Context, blobs [][]byte) error {
	longest := 0
	for _, b := range blobs {
		longest = max(longest, len(b))
	}
	mine := c.job.rank
	for at := 0; at < longest; at += sysBoxSize {
		copy(c.area[sysBox:], piece(blobs[mine], at))
		if err := c.disseminate(ctx); err != nil {
			return err
		}
		for i := 1; i < c.job.size; i++ {
			r := (mine + i) % c.job.size // begin with the neighbour, so that no rank is read by all at once
			if p := piece(blobs[r], at); len(p) > 0 {
				if _, err := c.to(r).Get(r, c.at+sysBox, p, fabric.Implicit); err != nil {
					return err
				}
			}
		}
		if err := c.flush(ctx); err != nil {
			return err
		}
		if err := c.disseminate(ctx); err != nil {
			return err
		}
	}
	return nil
}

// piece is the box full of b at a position, empty beyond the end.
func piece(b []byte, at int) []byte {
	if at >= len(b) {
		return nil
	}
	return b[at:min(len(b), at+sysBoxSize)]
}

// BroadcastValue gives every rank root's v.
func BroadcastValue[T any](ctx context.Context, j *Job, root int, v T) (T, error) {
	if !pointerFree[T]() {
		return v, typeError[T]()
	}
	err := j.Broadcast(ctx, root, bytesOf(unsafe.Slice(&v, 1)))
	return v, err
}

// AllGatherValue returns every rank's v, indexed by rank.
func AllGatherValue[T any](ctx context.Context, j *Job, v T) ([]T, error) {
	if !pointerFree[T]() {
		return nil, typeError[T]()
	}
	blobs, err := j.AllGather(ctx, bytesOf(unsafe.Slice(&v, 1)))
	if err != nil {
		return nil, err
	}
	all := make([]T, j.size)
	for r, b := range blobs {
		if len(b) != int(unsafe.Sizeof(v)) {
			return nil, fmt.Errorf("conduit: all-gather: rank %d gave %d bytes where this rank gave %d", r, len(b), unsafe.Sizeof(v))
		}
		copy(bytesOf(all[r:r+1]), b)
	}
	return all, nil
}
