package bootstrap

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// pmiChunk characters go into one value. Hydra 4.0.2 announces 1024 and cuts
// at 1023 in silence; Slurm 22.05 limits the whole line to about 1 KiB and
// then answers no more (both measured).
const pmiChunk = 512

// maxPieces of a sealed blob.
const maxPieces = maxFrameToRoot * 4 / 3 / pmiChunk

// pmi1 is the exchange of Hydra, of srun --mpi=pmi2 and of Flux. Its key-value
// store is used only for calls that PMI-1 has always had: an unknown command makes
// Hydra end the job.
type pmi1 struct {
	identity
	conn    *pmiConn
	kvs     string
	gen     int           // of the next Exchange; a key is never used twice
	timeout time.Duration // until all have come to the first one
	hint    string        // what of the launcher would have ended the job sooner
	losses  chan Loss
	closing sync.Once
	exit    func(code int)
}

func joinPMI1(ctx context.Context, env environment, opts Options) (backend, error) {
	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	p := &pmi1{losses: make(chan Loss), exit: os.Exit, timeout: opts.Timeout}
	if inStep(env) && !env.has("HYDI_CONTROL_FD") {
		p.hint = "; srun -K1 ends the job at the first failure"
	}
	var err error
	if env.has("PMI_FD") {
		err = p.openFD(env)
	} else {
		err = p.openPort(ctx, env)
	}
	if err == nil {
		err = p.hello(ctx)
	}
	if err != nil {
		if p.conn != nil {
			p.conn.conn.Close()
		}
		return nil, err
	}
	p.readLocal(env)
	return p, nil
}

// openFD uses the socket that the launcher left. net.FileConn works on a
// duplicate, which has deadlines; the original stays open, closed on exec, so
// that the number in PMI_FD cannot come to mean another file.
func (p *pmi1) openFD(env environment) error {
	var err error
	if p.rank, err = env.number("PMI_RANK"); err != nil {
		return err
	}
	if p.size, err = env.number("PMI_SIZE"); err != nil {
		return err
	}
	fd, err := env.number("PMI_FD")
	if err != nil {
		return err
	}
	c, err := connFromFD(fd)
	if err != nil {
		return fmt.Errorf("PMI_FD=%d: %w (%s)", fd, err, whyGone)
	}
	p.conn = newPMIConn(c)
	return nil
}

// dialLauncher dials a launcher that names its host. On a host that does not
// resolve its own name, as many containers, that name means this host.
func dialLauncher(ctx context.Context, addr, own string) (net.Conn, error) {
	var unknown *net.DNSError
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	for begun := time.Now(); errors.As(err, &unknown) && unknown.Temporary() && time.Since(begun) < stuckTime &&
		ctx.Err() == nil; {
		time.Sleep(10 * dialFirst) // all ranks ask a name server at once
		c, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	if err == nil || !errors.As(err, &unknown) {
		return c, err
	}
	host, port, split := net.SplitHostPort(addr)
	if split != nil || host != own {
		return nil, fmt.Errorf("%w; is the launcher's host in this host's /etc/hosts?", err)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
}

// openPort dials the launcher, which then sends rank and size in four lines,
// the last of them debug.
func (p *pmi1) openPort(ctx context.Context, env environment) error {
	own, _ := os.Hostname()
	c, err := dialLauncher(ctx, env.get("PMI_PORT"), own)
	if err != nil {
		return fmt.Errorf("PMI_PORT=%s: %w", env.get("PMI_PORT"), err)
	}
	p.conn = newPMIConn(c)
	if _, err := p.conn.call(ctx, "cmd=initack pmiid="+env.get("PMI_ID"), "initack"); err != nil {
		return err
	}
	settings := pmiLine{}
	for settings["debug"] == "" {
		m, err := p.conn.call(ctx, "", "set")
		if err != nil {
			return err
		}
		if len(settings) > 16 {
			return errors.New("PMI server sets too many things")
		}
		for k, v := range m {
			settings[k] = v
		}
	}
	lookup := environment(func(k string) (string, bool) { v, ok := settings[k]; return v, ok })
	if p.rank, err = lookup.number("rank"); err != nil {
		return fmt.Errorf("PMI server: %w", err)
	}
	if p.size, err = lookup.number("size"); err != nil {
		return fmt.Errorf("PMI server: %w", err)
	}
	return nil
}

func (p *pmi1) hello(ctx context.Context) error {
	if p.size < 1 || p.rank >= p.size {
		return fmt.Errorf("PMI says rank %d of %d", p.rank, p.size)
	}
	m, err := p.conn.call(ctx, "cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
	if err != nil {
		for _, closed := range []error{io.EOF, syscall.EPIPE, syscall.ECONNRESET} { // as by a Close
			if errors.Is(err, closed) {
				return fmt.Errorf("%w: the launcher has gone, or %w", err, errTaken)
			}
		}
		return err
	}
	if v := m["pmi_version"]; v != "1" {
		return fmt.Errorf("PMI server speaks version %q, not 1", v)
	}
	if m, err = p.conn.call(ctx, "cmd=get_maxes", "maxes"); err != nil {
		return err
	}
	if n, err := strconv.Atoi(m["vallen_max"]); err != nil || n < pmiChunk {
		return fmt.Errorf("PMI server takes values of %q bytes, %d are needed", m["vallen_max"], pmiChunk)
	}
	if m, err = p.conn.call(ctx, "cmd=get_my_kvsname", "my_kvsname"); err != nil {
		return err
	}
	if p.kvs = m["kvsname"]; p.kvs == "" {
		return errors.New("PMI server gave no name of its key-value store")
	}
	p.job = p.kvs
	return nil
}

// readLocal takes the place on this host where the launcher gives it; else
// the headers of the first Exchange do.
func (p *pmi1) readLocal(env environment) {
	if !env.has("MPI_LOCALRANKID", "MPI_LOCALNRANKS") {
		return
	}
	r, err1 := env.number("MPI_LOCALRANKID")
	n, err2 := env.number("MPI_LOCALNRANKS")
	if err1 == nil && err2 == nil && r < n && n <= p.size {
		p.localRank, p.localSize, p.localKnown = r, n, true
	}
}

func (p *pmi1) id() identity { return p.identity }

// exchange is an allgather over the store: put, barrier, get.
func (p *pmi1) exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	gen := p.gen
	p.gen++
	if gen == 0 {
		var cancel func()
		ctx, cancel = firstWithin(ctx, p.timeout)
		defer cancel()
	}
	if err := p.put(ctx, gen, blob); err != nil {
		return nil, err
	}
	if err := p.barrier(ctx); err != nil {
		return nil, err
	}
	blobs := make([][]byte, p.size)
	for r := range blobs {
		var err error
		if blobs[r], err = p.get(ctx, gen, r); err != nil {
			return nil, fmt.Errorf("PMI blob of rank %d: %w", r, err)
		}
	}
	return blobs, nil
}

// firstWithin bounds the first Exchange by the time to join: whether all ranks have come shows
// there only, and no other rank has a verdict that is worth waiting for.
func firstWithin(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, errOwnTime)
}

// put writes g<gen>.<rank> = pieces and the pieces; the seal of the blob shows a cut.
// base64url has no blank, '=' or ';' in it, which the servers cannot carry.
func (p *pmi1) put(ctx context.Context, gen int, blob []byte) error {
	text := base64.RawURLEncoding.EncodeToString(blob)
	pieces := (len(text) + pmiChunk - 1) / pmiChunk
	key := fmt.Sprintf("g%d.%d", gen, p.rank)
	if err := p.putValue(ctx, key, strconv.Itoa(pieces)); err != nil {
		return err
	}
	for i := range pieces {
		piece := text[i*pmiChunk : min((i+1)*pmiChunk, len(text))]
		if err := p.putValue(ctx, fmt.Sprintf("%s.%d", key, i), piece); err != nil {
			return err
		}
	}
	return nil
}

func (p *pmi1) putValue(ctx context.Context, key, value string) error {
	_, err := p.conn.call(ctx, "cmd=put kvsname="+p.kvs+" key="+key+" value="+value, "put_result")
	return err
}

func (p *pmi1) getValue(ctx context.Context, key string) (string, error) {
	m, err := p.conn.call(ctx, "cmd=get kvsname="+p.kvs+" key="+key, "get_result")
	return m["value"], err
}

func (p *pmi1) get(ctx context.Context, gen, rank int) ([]byte, error) {
	key := fmt.Sprintf("g%d.%d", gen, rank)
	head, err := p.getValue(ctx, key)
	if err != nil {
		return nil, err
	}
	pieces, err := strconv.ParseUint(head, 10, 31)
	if err != nil || pieces > maxPieces {
		return nil, fmt.Errorf("%s: %q is no number of pieces: %w", key, shorten(head), ErrCorrupt)
	}
	var text strings.Builder
	for i := range pieces {
		piece, err := p.getValue(ctx, fmt.Sprintf("%s.%d", key, i))
		if err != nil {
			return nil, err
		}
		text.WriteString(piece)
	}
	blob, err := base64.RawURLEncoding.DecodeString(text.String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", key, err, ErrCorrupt)
	}
	return blob, nil
}

// barrier also publishes the values put. PMI does not name the ranks that are missing.
func (p *pmi1) barrier(ctx context.Context) error {
	begun := time.Now()
	_, err := p.conn.call(ctx, "cmd=barrier_in", "barrier_out")
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("PMI barrier: not all %d ranks within %v; see the launcher's message%s: %w",
			p.size, time.Since(begun).Round(time.Millisecond), p.hint, err)
	}
	return err
}

func (p *pmi1) lost() <-chan Loss { return p.losses }

// abort makes the launcher end the job; there is no answer, and until the
// launcher's signal arrives this process must not run on.
func (p *pmi1) abort(code int, _ string) {
	p.conn.say("cmd=abort exitcode="+strconv.Itoa(code), leaveTime)
	p.exit(code)
}

// close finalizes: a rank that ends without it fails the job under Hydra. PMI cannot carry why.
func (p *pmi1) close(*cause) error {
	var err error
	p.closing.Do(func() {
		err = p.conn.finish(leaveTime)
		close(p.losses)
	})
	return err
}
