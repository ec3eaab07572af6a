package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/handle/handletest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	handletest.VerifyTestMain(m)
}

var (
	seedFlag  = flag.Uint64("sim.seed", 0, "run the random worlds of the tests with this seed only, and print their traces")
	seedsFlag = flag.Int("sim.seeds", 20, "number of random worlds in each test")
)

// seeds runs a test for many seeds, or for the one that is asked for, and then with its trace.
func seeds(t *testing.T, run func(t *testing.T, cfg Config)) {
	t.Helper()
	if *seedFlag != 0 {
		run(t, Config{Seed: *seedFlag, Trace: os.Stdout})
		return
	}
	for seed := range uint64(*seedsFlag) {
		t.Run(fmt.Sprintf("seed=%d", seed+1), func(t *testing.T) { run(t, Config{Seed: seed + 1}) })
	}
}

func must(t fabrictest.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t testing.TB, cfg Config) *World {
	t.Helper()
	w, err := New(cfg)
	must(t, err)
	w.ConnectAll()
	return w
}

// mail is random traffic: every rank sends count messages to random peers, and each
// receiver checks that those of one sender come in order. Receivers grant nothing: what
// they have posted is always enough, or RNR shows that it was not.
type mail struct {
	count, batch, size int
	slots              int
	peers              int // of each rank; 0: all
}

func (m mail) run(w *World) error {
	got := 0
	want := m.count * w.Size()
	return w.Run(func(ctx context.Context, r *Rank) error {
		p, err := r.Net().NewEndpoint(0, fabric.EndpointConfig{Slots: m.slots, SlotSize: m.size, Sends: 2 * m.batch})
		if err != nil {
			return err
		}
		defer p.Close()
		next := make(map[int]uint32) // to each peer
		last := make(map[int]uint32) // from each
		events := make([]fabric.Event, 2*m.batch)
		left := m.count
		for got < want {
			for left > 0 {
				b, err := p.Reserve(0)
				if errors.Is(err, fabric.ErrAgain) {
					break
				} else if err != nil {
					return err
				}
				peer := r.Rand().IntN(r.Size())
				if m.peers > 0 {
					peer = (r.ID() + 1 + r.Rand().IntN(m.peers)) % r.Size()
				}
				next[peer]++
				binary.LittleEndian.PutUint32(b.Data, next[peer])
				f := fabric.Solicited
				if r.Rand().IntN(2) == 0 && left > 1 {
					f |= fabric.More
				}
				if err := p.Send(peer, b, 4+r.Rand().IntN(m.size-3), nil, 0, f); err != nil {
					if !errors.Is(err, fabric.ErrAgain) {
						return err
					}
					next[peer]--
					p.Release(b)
					break
				}
				left--
			}
			if err := p.Kick(); err != nil {
				return err
			}
			n, err := p.Poll(events, 20_000)
			if err != nil {
				return err
			}
			for _, e := range events[:n] {
				if e.Kind != fabric.Arrived {
					continue
				}
				last[e.Peer]++
				if k := binary.LittleEndian.Uint32(e.Data); k != last[e.Peer] {
					return fmt.Errorf("message %d of rank %d came in place of %d", k, e.Peer, last[e.Peer])
				}
				if err := p.Post(e.Slot); err != nil {
					return err
				}
				got++
			}
		}
		return nil
	})
}

// traceOf runs a world and returns its trace, its hash and its error.
func traceOf(t testing.TB, cfg Config, run func(w *World) error) (string, uint64, error) {
	t.Helper()
	var b bytes.Buffer
	cfg.Trace = &b
	w := newWorld(t, cfg)
	err := run(w)
	return b.String(), w.TraceHash(), err
}

// verify checks what must hold of every endpoint at any time.
func verify(t testing.TB, w *World) {
	t.Helper()
	for i := range w.ranks {
		for _, p := range w.ranks[i].net.endpoints {
			if p == nil || p.closed {
				continue
			}
			open, made, listed, flying := 0, 0, 0, 0
			for c := p.byUse.First(); c != nil; c = c.use.Next() {
				listed++
				flying += c.out.Len()
				if p.conns[c.peer] != c || c.landed > c.posted || c.posted > c.out.Len() {
					t.Fatalf("rank %d, connection to %d: %d landed of %d posted of %d", i, c.peer, c.landed, c.posted, c.out.Len())
				}
				if c.state != closing {
					open++
				}
				if c.state == up {
					made++
					if c.far.state != gone && c.far.epoch != c.epoch {
						t.Fatalf("rank %d is at epoch %d with rank %d, which is at %d", i, c.epoch, c.peer, c.far.epoch)
					}
				}
			}
			if listed != len(p.conns) || open != p.open || made != p.up {
				t.Fatalf("rank %d counts %d connections, %d of them open and %d up; it has %d, %d and %d", i, len(p.conns), p.open, p.up, listed, open, made)
			}
			if taken := p.cfg.Sends - p.out.Left(); flying > taken {
				t.Fatalf("rank %d: %d send buffers are taken of %d, with %d messages", i, taken, p.cfg.Sends, flying)
			}
		}
	}
}
