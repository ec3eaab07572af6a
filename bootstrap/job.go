package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
)

// backend is what a launcher, or our own rendezvous, must do. Everything
// else, checksums and the comparison of headers, is in job, once.
type backend interface {
	id() identity
	exchange(ctx context.Context, blob []byte) ([][]byte, error)
	barrier(ctx context.Context) error
	abort(code int, msg string) // ends the process, unless in a group
	lost() <-chan Loss
	close(why *cause) error // the others receive why
}

// identity is what a backend knows of this rank.
type identity struct {
	rank, size           int
	job                  string
	localRank, localSize int
	localKnown           bool
}

// job is the Bootstrap over any backend.
type job struct {
	be   backend
	name string
	opts Options
	turn chan struct{} // held by the collective in progress

	mu     sync.Mutex
	ident  identity
	closed bool
	seq    uint32 // Exchanges begun; guarded by turn
	failed error  // a header or checksum error is final; guarded by turn
}

func newJob(be backend, name string, opts Options) *job {
	return &job{be: be, name: name, opts: opts, turn: make(chan struct{}, 1), ident: be.id()}
}

func (j *job) identity() identity {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ident
}

func (j *job) Rank() int     { return j.identity().rank }
func (j *job) Size() int     { return j.identity().size }
func (j *job) JobID() string { return j.identity().job }
func (j *job) Name() string  { return j.name }

func (j *job) Local() (rank, size int, ok bool) {
	id := j.identity()
	return id.localRank, id.localSize, id.localKnown
}

func (j *job) Lost() <-chan Loss { return j.be.lost() }

func (j *job) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	if len(blob) > MaxBlob {
		return nil, fmt.Errorf("bootstrap: Exchange of %d bytes: at most %d go at once", len(blob), MaxBlob)
	}
	if err := j.begin(ctx, opExchange); err != nil {
		return nil, err
	}
	defer func() { <-j.turn }()
	j.seq++
	var head []byte
	if j.seq == 1 {
		own := ownHeader(j.identity(), j.opts)
		head = encode(nil, &own)
	}
	sealed, err := j.be.exchange(ctx, seal(j.seq, head, blob))
	if err != nil {
		j.failed = prefixed(err)
		return nil, j.failed
	}
	blobs, err := j.open(sealed)
	if err != nil {
		j.failed = prefixed(err)
		return nil, j.failed
	}
	return blobs, nil
}

func (j *job) Barrier(ctx context.Context) error {
	if err := j.begin(ctx, opBarrier); err != nil {
		return err
	}
	defer func() { <-j.turn }()
	if err := j.be.barrier(ctx); err != nil {
		j.failed = prefixed(err)
		return j.failed
	}
	return nil
}

// begin takes the turn: collectives of one rank run one after the other.
func (j *job) begin(ctx context.Context, o op) error {
	if ctx.Err() != nil {
		return fmt.Errorf("bootstrap: %v of rank %d came too late: %w", o, j.Rank(), context.Cause(ctx))
	}
	select {
	case j.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("bootstrap: another collective of this rank is in progress: %w", context.Cause(ctx))
	}
	j.mu.Lock()
	closed := j.closed
	j.mu.Unlock()
	err := j.failed
	if closed {
		err = fmt.Errorf("bootstrap: %w", os.ErrClosed)
	}
	if err != nil {
		<-j.turn
	}
	return err
}

// open checks and unpacks the blobs of all ranks.
func (j *job) open(sealed [][]byte) ([][]byte, error) {
	id := j.identity()
	if len(sealed) != id.size {
		return nil, fmt.Errorf("Exchange gave %d blobs for %d ranks: %w", len(sealed), id.size, ErrCorrupt)
	}
	blobs := make([][]byte, id.size)
	headers := make([]header, 0, id.size)
	for r, s := range sealed {
		head, blob, err := unseal(j.seq, s)
		if err != nil {
			return nil, fmt.Errorf("Exchange %d, blob of rank %d: %w", j.seq, r, err)
		}
		blobs[r] = blob
		if j.seq > 1 {
			continue
		}
		var h header
		if err := decode(head, &h); err != nil {
			return nil, fmt.Errorf("header of rank %d: %w", r, err)
		}
		headers = append(headers, h)
	}
	if j.seq == 1 {
		if err := compare(headers); err != nil {
			return nil, err
		}
		j.findLocal(headers)
	}
	return blobs, nil
}

// findLocal counts the ranks of this host, where the backend could not.
func (j *job) findLocal(headers []header) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ident.localKnown {
		return
	}
	hosts := make([]string, len(headers))
	for r, h := range headers {
		hosts[r] = h.hostID
	}
	j.ident.localRank, j.ident.localSize = localPlace(hosts, j.ident.rank)
	j.ident.localKnown = true
}

// localPlace gives a rank's number among those with the same host.
func localPlace(hosts []string, rank int) (local, size int) {
	for r, h := range hosts {
		if h != hosts[rank] {
			continue
		}
		if r < rank {
			local++
		}
		size++
	}
	return local, size
}

// AbortCode is the code that Abort ends the process with: never one that means
// success.
func AbortCode(code int) int {
	if code&0xff == 0 {
		return 1
	}
	return code
}

func (j *job) Abort(code int, msg string) {
	code = AbortCode(code)
	if _, inGroup := j.be.(*member); !inGroup || j.be.(*member).exit != nil {
		fmt.Fprintf(os.Stderr, "rank %d: abort with code %d: %s\n", j.Rank(), code, msg)
	}
	j.be.abort(code, msg)
}

func (j *job) Close() error { return j.leave(&cause{kind: causeLeft}) }

func (j *job) Fail(why error) error {
	return j.leave(&cause{kind: causeFailed, text: "failed: " + why.Error()})
}

func (j *job) Leave(why error) error {
	return j.leave(&cause{kind: causeLeft, text: leftEarly + ": " + why.Error()})
}

func (j *job) leave(why *cause) error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	j.mu.Unlock()
	if err := j.be.close(why); err != nil {
		return fmt.Errorf("bootstrap: close: %w", err)
	}
	return nil
}

// The seal of a blob: crc32c of the rest, number of the Exchange, length of
// the header, header, blob. Some launchers cut values in silence.
const sealBytes = 12

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func seal(seq uint32, head, blob []byte) []byte {
	b := make([]byte, 4, sealBytes+len(head)+len(blob))
	b = binary.LittleEndian.AppendUint32(b, seq)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(head)))
	b = append(append(b, head...), blob...)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

func unseal(seq uint32, b []byte) (head, blob []byte, err error) {
	if len(b) < sealBytes {
		return nil, nil, fmt.Errorf("%d bytes are too few: %w", len(b), ErrCorrupt)
	}
	if got, want := crc32.Checksum(b[4:], castagnoli), binary.LittleEndian.Uint32(b); got != want {
		return nil, nil, fmt.Errorf("checksum of %d bytes is %08x, sent as %08x: %w", len(b), got, want, ErrCorrupt)
	}
	if got := binary.LittleEndian.Uint32(b[4:]); got != seq {
		return nil, nil, fmt.Errorf("it belongs to Exchange %d: %w", got, errors.Join(ErrMisuse, ErrCorrupt))
	}
	n := binary.LittleEndian.Uint32(b[8:])
	rest := b[sealBytes:]
	if uint64(n) > uint64(len(rest)) {
		return nil, nil, fmt.Errorf("header of %d bytes in %d: %w", n, len(rest), ErrCorrupt)
	}
	return rest[:n:n], rest[n:], nil
}
