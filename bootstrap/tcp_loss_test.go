package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTCPDeathBeforeTheStartFailsAll(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	rvs := tcpRanks(t, 4, nil)
	// Rank 3 says hello, is welcomed, and dies; rank 2 never comes.
	conf, err := tlsFor([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := dialRoot(ctx, rvs[3], conf)
		if err != nil {
			t.Error(err)
			return
		}
		time.Sleep(50 * time.Millisecond) // so that rank 1 arrives, most times
		conn.NetConn().Close()
	})
	_, errs := join(ctx, []*rendezvous{rvs[0], rvs[1]})
	for r, err := range errs {
		refusal(t, fmt.Sprintf("rank %d", r), err, ReasonDied, "rank 3 (", "went away before all ranks had arrived")
	}
	wg.Wait()
}

func TestTCPDeathOfRankZeroBeforeTheStart(t *testing.T) {
	t.Parallel()
	rvs := tcpRanks(t, 2, nil)
	conf, err := tlsFor([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	ln := inPlaceOfRankZero(t, rvs)
	go func() { // a rank 0 that dies after its welcome
		c, err := ln.Accept()
		ln.Close()
		if err == nil {
			s := tlsServer(c, conf)
			_, _, _ = readFrame(s, maxHello)
			_, _ = s.Write(finish(newFrame(frameWelcome, 0)))
			c.Close()
		}
	}()
	_, err = rvs[1].join(bounded(t))
	wantLost(t, 1, err, 0, io.EOF)
}

// Rank 0 has a rank's hello and is slow: it would take a second dial for another process.
func TestTCPRankWhoseHelloIsOnItsWayDialsOnce(t *testing.T) {
	t.Parallel()
	rvs := tcpRanks(t, 2, func(_ int, rv *rendezvous) { rv.handshake = 500 * time.Millisecond })
	conf, err := tlsFor([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	ln := inPlaceOfRankZero(t, rvs)
	var hellos atomic.Int32
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s := tlsServer(c, conf)
				if _, _, err := readFrame(s, maxHello); err == nil {
					hellos.Add(1)
					time.Sleep(4 * rvs[1].handshake)
					_, _ = s.Write(append(finish(newFrame(frameWelcome, 0)), encodeFrame(frameStart, &start{job: "test", localSize: 2})...))
					_, _, _ = readFrame(s, maxHello)
				}
			}()
		}
	}()
	b, err := rvs[1].join(bounded(t))
	if n := hellos.Load(); err != nil || n != 1 {
		t.Fatalf("%v, after %d hellos", err, n)
	}
	noErrors(t, []error{b.close(&cause{kind: causeLeft})})
}

func TestAllOthersLearnWhyARankFailed(t *testing.T) {
	t.Parallel()
	for name, start := range backends {
		for _, bad := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s rank %d", name, bad), func(t *testing.T) {
				t.Parallel()
				ctx := bounded(t)
				ranks := start(t, 5)
				defer closeAll(ranks)
				errs := onAll(ranks, func(b Bootstrap) error {
					if b.Rank() == bad {
						return b.Fail(errors.New("no more memory"))
					}
					return b.Barrier(ctx)
				})
				for r, err := range errs {
					if r == bad {
						if err != nil {
							t.Errorf("Fail: %v", err)
						}
						continue
					}
					loss := lossOf(t, ranks[r])
					wantLost(t, r, err, bad, ErrFailed, " failed: no more memory$")
					wantLost(t, r, loss.Cause, bad, ErrFailed, " failed: no more memory$")
				}
			})
		}
	}
}

func TestTCPDeathIsALossForAllOthers(t *testing.T) {
	t.Parallel()
	for _, dead := range []int{0, 3} {
		for _, when := range []string{"during", "after"} {
			t.Run(fmt.Sprintf("rank %d %s a Barrier", dead, when), func(t *testing.T) {
				t.Parallel()
				ctx := bounded(t)
				ranks := joined(t, 5)
				noErrors(t, onAll(ranks, func(b Bootstrap) error { return b.Barrier(ctx) }))
				if when == "after" {
					die(ranks[dead])
				}
				errs := onAll(ranks, func(b Bootstrap) error {
					if b.Rank() == dead {
						if when == "during" {
							for _, other := range ranks {
								if other != b {
									inCollective(t, other)
								}
							}
							die(b)
						}
						return nil
					}
					if when == "after" {
						if l := lossOf(t, b); l.Rank != dead || !errors.As(l.Cause, new(*LostError)) {
							t.Errorf("rank %d noticed %+v", b.Rank(), l)
						}
					}
					return b.Barrier(ctx)
				})
				for r, err := range errs {
					if r == dead {
						continue
					}
					var lost *LostError
					if !errors.As(err, &lost) || lost.Rank != dead {
						t.Errorf("rank %d: %v", r, err)
						continue
					}
					if dead != 0 && !strings.Contains(err.Error(), fmt.Sprintf("rank %d (%s) went away: ", dead, thisProcess())) {
						t.Errorf("rank %d: %q does not name the process", r, err)
					}
					if when == "during" {
						if l := lossOf(t, ranks[r]); l.Rank != dead {
							t.Errorf("rank %d noticed %+v", r, l)
						}
					}
					if _, err := ranks[r].Exchange(ctx, nil); !errors.As(err, &lost) || lost.Rank != dead {
						t.Errorf("rank %d: next Exchange: %v", r, err)
					}
				}
			})
		}
	}
}

// backends are those whose ranks lose one another.
var backends = map[string]func(t *testing.T, n int) []Bootstrap{
	"tcp":   joined,
	"group": func(_ *testing.T, n int) []Bootstrap { return NewGroup(n) },
}

// onBackends runs a test over each, with a job of n ranks.
func onBackends(t *testing.T, n int, test func(t *testing.T, ranks []Bootstrap)) {
	t.Parallel()
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ranks := start(t, n)
			defer closeAll(ranks)
			test(t, ranks)
		})
	}
}

func TestBlobsOfAllSizesAreExchanged(t *testing.T) {
	onBackends(t, 5, func(t *testing.T, ranks []Bootstrap) {
		ctx := bounded(t)
		noErrors(t, onAll(ranks, func(b Bootstrap) error { return checkExchanges(ctx, b) }))
		noErrors(t, onAll(ranks, Bootstrap.Close))
		noLosses(t, ranks)
	})
}

// noLosses closes the ranks, none of which has noticed one.
func noLosses(t *testing.T, ranks []Bootstrap) {
	t.Helper()
	for r, b := range ranks {
		b.Close()
		if l, ok := <-b.Lost(); ok {
			t.Errorf("rank %d noticed a loss: %v", r, l)
		}
	}
}

func TestACloseIsNoLossButEndsCollectives(t *testing.T) {
	for _, leaver := range []int{0, 2} {
		for _, when := range []string{"before", "during"} {
			t.Run(fmt.Sprintf("rank %d %s", leaver, when), func(t *testing.T) {
				onBackends(t, 3, func(t *testing.T, ranks []Bootstrap) {
					ctx := bounded(t)
					if when == "before" {
						noErrors(t, []error{ranks[leaver].Close()})
					}
					for r, err := range onAll(ranks, func(b Bootstrap) error {
						if when == "during" && b.Rank() == leaver {
							return b.Close()
						}
						_, err := b.Exchange(ctx, nil)
						return err
					}) {
						switch {
						case r != leaver:
							wantLost(t, r, err, leaver, ErrLeft, " left the job in good order$")
						case when == "before" && !errors.Is(err, os.ErrClosed), when == "during" && err != nil:
							t.Errorf("the closed rank: %v", err)
						}
					}
					noLosses(t, ranks)
				})
			})
		}
	}
}

func TestATimeOutNamesTheMissingAndFailsAll(t *testing.T) {
	onBackends(t, 4, func(t *testing.T, ranks []Bootstrap) {
		errs := onAll(ranks, func(b Bootstrap) error {
			ctx := bounded(t)
			switch b.Rank() {
			case 1:
				if be, ok := b.(*job).be.(*peer); ok {
					be.client.echo = time.Minute
				}
				ctx = endsWhen(ctx, func() { contributed(t, ranks[0], 3) })
			case 2:
				return nil // never calls
			}
			_, err := b.Exchange(ctx, nil)
			return err
		})
		for _, r := range []int{0, 1, 3} {
			wantLost(t, r, errs[r], 1, ErrGaveUp, "waiting for rank 2")
		}
		wantLost(t, 1, errs[1], 1, context.DeadlineExceeded)
		for r, b := range ranks {
			select {
			case l := <-b.Lost():
				t.Errorf("rank %d took the end of a context for a death: %v", r, l)
			default:
			}
		}
	})
}

func TestAnAbortEndsCollectivesAndIsALoss(t *testing.T) {
	onBackends(t, 3, func(t *testing.T, ranks []Bootstrap) {
		ctx := bounded(t)
		errs := onAll(ranks, func(b Bootstrap) error {
			if b.Rank() == 1 {
				b.Abort(7, "out of cheese")
				return nil
			}
			return b.Barrier(ctx)
		})
		for _, r := range []int{0, 2} {
			for _, err := range []error{errs[r], lossOf(t, ranks[r]).Cause} {
				var abort *AbortError
				if wantLost(t, r, err, 1, err); !errors.As(err, &abort) || abort.Code != 7 || abort.Msg != "out of cheese" {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		}
	})
}

// A rank that still works would wait for ever for one that has left.
func TestLeavingAfterGivingUpIsALoss(t *testing.T) {
	t.Parallel()
	for name, start := range backends {
		for _, impatient := range []int{0, 2} {
			ranks := start(t, 3)
			ctx := endsWhen(bounded(t), func() { inCollective(t, ranks[impatient]) })
			if err := ranks[impatient].Barrier(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: barrier without the others: %v", name, err)
			}
			if err := ranks[impatient].Close(); err != nil {
				t.Error(err)
			}
			for r, b := range ranks {
				if r == impatient {
					continue
				}
				if l := lossOf(t, b); l.Rank != impatient || !errors.Is(l.Cause, ErrLeft) {
					t.Errorf("%s: rank %d: %+v", name, r, l)
				}
			}
			closeAll(ranks)
		}
	}
}

// A rank that still works would wait for ever for one that left because of a death.
func TestLeavingWhereARankIsLostIsALoss(t *testing.T) {
	t.Parallel()
	for name, start := range backends {
		for _, order := range []string{"death first", "leaving first"} {
			t.Run(name+"/"+order, func(t *testing.T) {
				t.Parallel()
				ranks := start(t, 4)
				defer closeAll(ranks)
				dies := func() { ranks[3].Abort(7, "out of cheese") }
				leaves := func() {
					if err := ranks[2].Close(); err != nil {
						t.Error(err)
					}
				}
				if order == "death first" {
					dies()
					lossOf(t, ranks[1])
					leaves()
				} else {
					leaves()
					if err := ranks[1].Barrier(bounded(t)); !errors.Is(err, ErrLeft) { // it has noticed
						t.Errorf("barrier without rank 2: %v", err)
					}
					dies()
					lossOf(t, ranks[1])
				}
				wantLost(t, 1, lossOf(t, ranks[1]).Cause, 2, ErrLeft, "left the job without the others, for rank 3 ")
			})
		}
	}
}

// The rank that leaves names its reason to the others.
func TestLeavingEarlyIsALoss(t *testing.T) {
	t.Parallel()
	for name, start := range backends {
		for _, leaver := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/rank %d", name, leaver), func(t *testing.T) {
				t.Parallel()
				ranks := start(t, 4)
				defer closeAll(ranks)
				noErrors(t, []error{ranks[3].Close()})
				if err := ranks[1].Barrier(bounded(t)); !errors.Is(err, ErrLeft) { // it has noticed
					t.Errorf("barrier without rank 3: %v", err)
				}
				noErrors(t, []error{ranks[leaver].Leave(errors.New("rank 3 is deaf"))})
				for _, lost := range []int{leaver, 3} {
					wantLost(t, 1, lossOf(t, ranks[1]).Cause, lost, ErrLeft, " left the job without the others: rank 3 is deaf$")
				}
			})
		}
	}
}

func TestNoAbortLooksLikeAGoodEnd(t *testing.T) {
	for code, want := range map[int]int{0: 1, 256: 1, -512: 1, 1: 1, 7: 7, 255: 255, 257: 257, -1: -1} {
		m, got := newSelf(), 0
		m.exit = func(code int) { got = code }
		if newJob(m, "self", Options{}.withDefaults()).Abort(code, "out of cheese"); got != want {
			t.Errorf("abort with %d ends with %d, want %d", code, got, want)
		}
	}
}
