//go:build linux && cgo

package twohosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
)

// Variables that tell the test binary to be a rank, and for how many rounds.
const (
	envProgram = "IBCONDUIT_TEST_PROGRAM"
	envRounds  = "IBCONDUIT_TEST_ROUNDS"
)

// rankLimit bounds a rank's life: the device may take half a minute to notice
// a death.
const rankLimit = 3 * time.Minute

// rankMain joins the job of the environment, runs a program and returns the exit
// code. A rank that finds another one down says so and succeeds: the test knows
// whether it should have.
func rankMain(program string) int {
	ctx, cancel := context.WithTimeout(context.Background(), rankLimit)
	defer cancel()
	rounds, err := strconv.Atoi(os.Getenv(envRounds))
	if err != nil {
		fmt.Println(err)
		return 2
	}
	j, err := conduit.Join(ctx, conduit.Config{SegmentSize: segmentBytes, CloseTimeout: 20 * time.Second, Handlers: handlers[program]})
	if err != nil {
		fmt.Println("join:", err)
		return 1
	}
	w, err := j.NewWorker()
	if err == nil {
		w.SetContext(ctx)
		err = programs[program](ctx, j, w, rounds)
		err = errors.Join(err, w.Close())
	}
	var down *conduit.PeerDownError
	switch {
	case errors.As(err, &down):
		fmt.Printf("rank %d: found rank %d down: %v\n", j.Rank(), down.Rank, err)
		_ = j.Close() // the dead cannot take part
		return 0
	case err == nil:
		err = j.Close()
	}
	if err != nil {
		fmt.Printf("rank %d: %v\n", j.Rank(), err)
		return 1
	}
	fmt.Printf("rank %d: done\n", j.Rank())
	return 0
}

const (
	segmentBytes = 8 << 20
	counterOff   = 0    // of every segment: a word that all add to
	swapOff      = 8    // one that all swap
	casOff       = 16   // one that all add to by compare-swap
	halvesOff    = 24   // whose halves all add to
	floatOff     = 32   // a float64 that all add to
	countsOff    = 64   // a word for each rank
	blockOff     = 4096 // then a block for each rank
	blockBytes   = 1 << 20
)

var programs = map[string]func(ctx context.Context, j *conduit.Job, w *conduit.Worker, rounds int) error{
	"exchange": exchange,
	"traffic":  traffic,
	"messages": messages,
	"mixed":    mixed,
	"silent":   silent,
	"farewell": farewell,
}

// handlers of the programs that use messages.
var handlers = map[string]*am.Table{"messages": table, "mixed": mixedTable, "silent": mixedTable, "farewell": farewellTable}

func block(rank int) uint64 { return blockOff + uint64(rank)*blockBytes }

// pattern is content that depends on the seed and on every place.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// exchange: every rank writes to and reads from every other, blocks of every size
// class, and all do atomics on words of rank 0, which must add up.
func exchange(ctx context.Context, j *conduit.Job, w *conduit.Worker, rounds int) error {
	for r := range j.Size() {
		fmt.Printf("rank %d: reaches rank %d over %s\n", j.Rank(), r, j.FabricTo(r))
	}
	for i, n := range []int{1, 8, 80, 300, 4096, 4097, 65_537, blockBytes} {
		mine := func(from, to int) []byte { return pattern(n, 1000*i+10*from+to) }
		for r := range j.Size() {
			if err := conduit.PutSlice(w, conduit.At[byte](r, block(j.Rank())), mine(j.Rank(), r)); err != nil {
				return err
			}
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		got := make([]byte, n)
		for r := range j.Size() {
			if !slices.Equal(j.Segment()[block(r):][:n], mine(r, j.Rank())) {
				return fmt.Errorf("the %d bytes that rank %d put are wrong", n, r)
			}
			// What a third rank put there.
			third := (r + 1) % j.Size()
			if err := conduit.GetSlice(w, got, conduit.At[byte](r, block(third))); err != nil {
				return err
			}
			if !slices.Equal(got, mine(third, r)) {
				return fmt.Errorf("%d bytes got from rank %d are wrong", n, r)
			}
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
	}
	return atomics(ctx, j, w, rounds)
}

// atomics of all ranks, on the host of the words or not, must not lose one
// another's.
func atomics(ctx context.Context, j *conduit.Job, w *conduit.Worker, rounds int) error {
	var sum, expected uint64 // of what swaps took out, and of what they put in
	for k := range rounds {
		if _, err := conduit.FetchAdd(w, conduit.At[uint64](0, counterOff), 1); err != nil {
			return err
		}
		token := uint64(j.Rank()*rounds + k + 1)
		old, err := conduit.Swap(w, conduit.At[uint64](0, swapOff), token)
		if err != nil {
			return err
		}
		sum, expected = sum+old, expected+token
		for guess := uint64(0); ; {
			old, err := conduit.CompareSwap(w, conduit.At[uint64](0, casOff), guess, guess+1)
			if err != nil {
				return err
			}
			if old == guess {
				break
			}
			guess = old
		}
		if _, err := conduit.FetchAdd(w, conduit.At[int32](0, halvesOff), -1); err != nil {
			return err
		}
		if err := w.Chain(func() error {
			return errors.Join(conduit.Add(w, conduit.At[uint32](0, halvesOff+4), 3), conduit.Add(w, conduit.At[float64](0, floatOff), 0.5))
		}); err != nil {
			return err
		}
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	all, err := conduit.AllGatherValue(ctx, j, [2]uint64{sum, expected})
	if err != nil {
		return err
	}
	left, err := conduit.Get(w, conduit.At[uint64](0, swapOff))
	if err != nil {
		return err
	}
	sum, expected = left, 0
	for _, v := range all {
		sum, expected = sum+v[0], expected+v[1]
	}
	if sum != expected {
		return fmt.Errorf("swaps took out %d in total and put in %d", sum, expected)
	}
	for _, off := range []uint64{counterOff, casOff} {
		got, err := conduit.Get(w, conduit.At[uint64](0, off))
		if err != nil {
			return err
		}
		if got != uint64(rounds*j.Size()) {
			return fmt.Errorf("%d additions to the word at %d gave %d", rounds*j.Size(), off, got)
		}
	}
	type sums struct {
		low   int32
		high  uint32
		float float64
	}
	n := rounds * j.Size()
	got, err := conduit.Get(w, conduit.At[sums](0, halvesOff))
	if want := (sums{int32(-n), uint32(3 * n), float64(n) / 2}); err == nil && got != want {
		err = fmt.Errorf("%d additions gave %+v, want %+v", n, got, want)
	}
	return errors.Join(err, j.Barrier(ctx))
}

// traffic between each rank and all others in turn, with every byte and every
// count looked at, until the rounds are over or a rank is down.
func traffic(ctx context.Context, j *conduit.Job, w *conduit.Worker, rounds int) error {
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	fmt.Printf("rank %d: traffic\n", j.Rank())
	got := make([]byte, 64<<10)
	for i := range rounds {
		to := (j.Rank() + 1 + i%(j.Size()-1)) % j.Size()
		want := pattern(1+(i*7919)%len(got), i)
		if err := conduit.PutSlice(w, conduit.At[byte](to, block(j.Rank())), want); err != nil {
			return err
		}
		if err := w.Flush(ctx); err != nil {
			return err
		}
		if err := conduit.GetSlice(w, got[:len(want)], conduit.At[byte](to, block(j.Rank()))); err != nil {
			return err
		}
		if !slices.Equal(got[:len(want)], want) {
			return fmt.Errorf("round %d: %d bytes came back different", i, len(want))
		}
		// A request that is sent twice must not be done twice.
		old, err := conduit.FetchAdd(w, conduit.At[uint64](to, countsOff+8*uint64(j.Rank())), 1)
		if err != nil {
			return err
		}
		if done := uint64(i / (j.Size() - 1)); old != done {
			return fmt.Errorf("round %d: %d additions were done before, want %d", i, old, done)
		}
	}
	return j.Barrier(ctx)
}

// What ranks run on one another: each counts the requests of each.
var (
	table = am.NewTable()
	done  [8]atomic.Uint64 // by the rank that asked

	// echo returns a Medium, or what a Long wrote, with how many requests came before.
	echo = table.Handle("echo", func(c *am.Call) {
		before := done[c.From()].Add(1) - 1
		if off, long := c.Offset(); long {
			_ = c.ReplyWith(am.Long(off, c.Payload()), before)
			return
		}
		_ = c.ReplyWith(am.Medium(c.Payload()), before)
	})
	// note is counted only.
	note = table.Handle("note", func(c *am.Call) { noted[c.From()].Add(1) })
	// notes counts them.
	notes = table.Handle("notes", func(c *am.Call) { _ = c.Reply(noted[c.From()].Load()) })
	noted [8]atomic.Uint64
)

// messages between each rank and all, itself too, with every byte looked at and every handler
// counted, until the rounds are over or a rank is down.
func messages(ctx context.Context, j *conduit.Job, w *conduit.Worker, rounds int) error {
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	fmt.Printf("rank %d: traffic\n", j.Rank())
	for i := range rounds {
		to := i % j.Size()
		body := am.Medium
		want := pattern(1+(i*7919)%4096, i)
		if i/j.Size()%2 == 1 {
			want = pattern(1+(i*7919)%(256<<10), i)
			body = func(b []byte) am.Payload { return am.Long(block(j.Rank()), b) }
		}
		r, err := echo.CallWith(ctx, w, to, body(want))
		if err != nil {
			return err
		}
		if !slices.Equal(r.Data, want) || r.Arg(0) != uint64(i/j.Size()) {
			return fmt.Errorf("round %d: %d bytes for %d, the same: %v; %d requests before, want %d", i, len(r.Data), len(want), slices.Equal(r.Data, want), r.Arg(0), i/j.Size())
		}
		if err := note.Post(ctx, w, to); err != nil {
			return err
		}
	}
	for to := range j.Size() { // each was handled once, sooner or later
		want := uint64((rounds + j.Size() - 1 - to) / j.Size())
		for got := uint64(0); got != want; time.Sleep(time.Millisecond) {
			r, err := notes.Call(ctx, w, to)
			if got = r.Arg(0); err != nil || got > want {
				return fmt.Errorf("%d of %d posts were handled at rank %d: %w", got, want, to, err)
			}
		}
	}
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	for network, s := range j.MessageStats() {
		fmt.Printf("rank %d: %d requests over %s, %d messages met no buffer\n", j.Rank(), s.Calls+s.Posts, network, s.Network.RNR)
	}
	return j.Barrier(ctx)
}
