package transient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/internal/memgroup"
	"github.com/ibconduit/conduit/internal/pressure"
)

// Rank is what a kernel runs on: one process of a run.
type Rank struct {
	Boot   bootstrap.Bootstrap
	Fabric string
	Device string
	place  string // of its memory group; empty: none
	params json.RawMessage
	mu     sync.Mutex
	out    *json.Encoder
}

// Params reads the kernel's parameters.
func (r *Rank) Params(to any) error { return json.Unmarshal(r.params, to) }

// Used is the memory of the rank's group in bytes; 0 without a group.
func (r *Rank) Used() int64 { return memgroup.Used(r.place) }

// Pinned is how many bytes of the rank devices and mlock have.
func (r *Rank) Pinned() int64 { return pressure.New().Read().Pinned }

// Say passes a line to Run.Said. Any goroutine may call it.
func (r *Rank) Say(v any) {
	line, err := json.Marshal(v)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		_ = r.out.Encode(said{Rank: r.Boot.Rank(), Line: line}) // the run has ended
	}
}

// RankMain is the whole life of a rank. It returns an exit code.
func RankMain() int { return Life(play) }

// Life is that of a rank that this program has started, which does what play does: it ends with a
// signal, and says why it has failed unless another rank does.
func Life(play func(ctx context.Context) (rank int, err error)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rank, err := play(ctx)
	if err == nil {
		return 0
	}
	if !measure.PeerEnded(err) && !errors.Is(err, measure.ErrElsewhere) && ctx.Err() == nil {
		lines := slices.Compact(strings.Split(err.Error(), "\n")) // many wait for the same
		fmt.Fprintf(os.Stderr, "ibbench: rank %d: %s\n", rank, strings.Join(lines, "\n"))
	}
	return 3
}

func play(ctx context.Context) (rank int, err error) {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(orderVar)), &o); err != nil {
		return 0, fmt.Errorf("%s: %w", orderVar, err)
	}
	k, ok := kernels[o.Kernel]
	if !ok {
		return 0, fmt.Errorf("no kernel %q", o.Kernel)
	}
	boot, err := bootstrap.New(ctx, bootstrap.Options{})
	if err != nil {
		return 0, err
	}
	rank = boot.Rank()
	r := &Rank{Boot: boot, Fabric: o.Fabric, Device: o.Device, params: o.Params, out: json.NewEncoder(os.Stdout)}
	if o.Places != nil {
		r.place = o.Places[rank]
		if err := memgroup.Enter(r.place); err != nil {
			return rank, errors.Join(err, boot.Close())
		}
	}
	result, err := k(ctx, r)
	if err != nil {
		return rank, err
	}
	b, err := json.Marshal(result)
	if err != nil {
		return rank, err
	}
	return rank, r.out.Encode(said{Rank: rank, Result: b})
}
