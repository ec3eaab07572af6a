package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// helperVar makes the test binary a rank of a launcher under test.
const helperVar = "IBCONDUIT_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperVar) {
	case "":
		goleak.VerifyTestMain(m)
	case "exchange":
		os.Exit(helperExchange())
	default:
		fmt.Fprintln(os.Stderr, "unknown helper", os.Getenv(helperVar))
		os.Exit(2)
	}
}

// helperExchange joins by the environment and checks what it receives.
func helperExchange() int {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	b, err := New(ctx, Options{})
	if err != nil {
		fmt.Println("join:", err)
		return 1
	}
	if err := errors.Join(checkExchanges(ctx, b), b.Close()); err != nil {
		fmt.Println(err)
		return 1
	}
	_, local, known := b.Local()
	fmt.Printf("ok %d/%d %s local %d %v\n", b.Rank(), b.Size(), b.Name(), local, known)
	return 0
}

// pattern is what a rank sends: every other can compute it.
func pattern(rank, round, size int) []byte {
	src := rand.NewChaCha8([32]byte{byte(rank), byte(round), byte(rank >> 8)})
	p := make([]byte, size)
	src.Read(p)
	return p
}

// checkExchanges sends blobs of the sizes that broke launchers, of odd sizes,
// and of sizes that differ between ranks.
func checkExchanges(ctx context.Context, b Bootstrap) error {
	sizes := []func(rank int) int{
		func(int) int { return 0 },
		func(int) int { return 8 },
		func(int) int { return 10_000 },
		func(int) int { return 200_000 },
		func(r int) int { return 383 + r },
		func(r int) int { return int(rand.New(rand.NewPCG(7, uint64(r))).IntN(5000)) },
	}
	for round, size := range sizes {
		got, err := b.Exchange(ctx, pattern(b.Rank(), round, size(b.Rank())))
		if err != nil {
			return fmt.Errorf("rank %d round %d: %w", b.Rank(), round, err)
		}
		if len(got) != b.Size() {
			return fmt.Errorf("rank %d round %d: %d blobs for %d ranks", b.Rank(), round, len(got), b.Size())
		}
		for r := range got {
			if string(got[r]) != string(pattern(r, round, size(r))) {
				return fmt.Errorf("rank %d round %d: blob of rank %d differs", b.Rank(), round, r)
			}
		}
		if err := b.Barrier(ctx); err != nil {
			return fmt.Errorf("rank %d barrier %d: %w", b.Rank(), round, err)
		}
	}
	return nil
}

// bounded is a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// inCollective waits until a collective operation of the rank has begun.
func inCollective(t *testing.T, b Bootstrap) {
	t.Helper()
	for ctx := bounded(t); len(b.(*job).turn) == 0; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Error("no collective operation begins")
			return
		}
	}
}

// contributed waits until so many ranks have contributed to the open collective, at the hub where
// rank 0 is.
func contributed(t *testing.T, rank0 Bootstrap, n int) {
	t.Helper()
	var h *hub
	switch be := rank0.(*job).be.(type) {
	case *member:
		h = be.client.up.(hubUplink).hub
	case *root:
		h = be.hub
	}
	count := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.count
	}
	for ctx := bounded(t); count() < n; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Errorf("%d of %d ranks contribute", count(), n)
			return
		}
	}
}

// endsWhen is a context that ends as by a deadline, once a function has returned: how long that
// takes is not known.
func endsWhen(parent context.Context, f func()) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		f()
		cancel(context.DeadlineExceeded)
	}()
	return ctx
}

// quiet keeps warnings out of the test's output.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// onAll runs f for all ranks at once and returns their errors.
func onAll(ranks []Bootstrap, f func(b Bootstrap) error) []error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for r, b := range ranks {
		if b != nil {
			wg.Go(func() { errs[r] = f(b) })
		}
	}
	wg.Wait()
	return errs
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func closeAll(ranks []Bootstrap) {
	for _, b := range ranks {
		if b != nil {
			_ = b.Close()
		}
	}
}

// lossOf waits for the next loss that a rank notices. Its cause names the same rank.
func lossOf(t *testing.T, b Bootstrap) Loss {
	t.Helper()
	select {
	case l, ok := <-b.Lost():
		if !ok {
			t.Fatalf("rank %d: Lost closed without a loss", b.Rank())
		}
		if e := (*LostError)(nil); errors.As(l.Cause, &e) && e.Rank != l.Rank {
			t.Errorf("rank %d: the loss of rank %d names rank %d", b.Rank(), l.Rank, e.Rank)
		}
		return l
	case <-time.After(30 * time.Second):
		t.Fatalf("rank %d noticed no loss", b.Rank())
	}
	panic("unreachable")
}

// wantLost checks an error of a rank: that it names the lost one and the cause, and has the
// words; $ is the end of the text.
func wantLost(t *testing.T, of int, err error, lost int, is error, words ...string) {
	t.Helper()
	var e *LostError
	if !errors.As(err, &e) || e.Rank != lost || !errors.Is(err, is) {
		t.Errorf("rank %d: %v, want the loss of rank %d by %v", of, err, lost, is)
		return
	}
	has(t, fmt.Sprintf("rank %d", of), err, words...)
}

// env makes a lookup of pairs "K", "V".
func env(pairs ...string) environment {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}
