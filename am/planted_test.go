//go:build amfault

package am_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
	"github.com/ibconduit/conduit/fabric/sim"
)

const plantEnv = "AM_TEST_PLANT"

// crowd has more goroutines than buffers call a rank that does nothing but serve, without attendants.
func crowd(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	l := lanes(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, AttendAfter: -1, Replies: 8})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- l[1].Serve(ctx) }()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range uint64(200) {
				if r, err := h.Call(ctx, l[0], 1, i); err != nil || r.Arg(0) != i {
					t.Error(r.Arg(0), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.Fatalf("rank 0 polled %d times, rank 1 keeps %d replies: %v", l[0].Stats().Polls, l[1].Stats().Unsent, <-served)
	}
	leave(t)
}

// leave has a goroutine wait that parked behind another, which leads and goes.
func leave(t *testing.T) {
	table := am.NewTable()
	tokens := make(chan *am.DeferredReply, 2)
	h := table.Handle("hold", func(c *am.Call) { tokens <- c.Defer(0) })
	l := lanes(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, AttendAfter: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	go func() { _ = l[1].Serve(ctx) }()
	var ends [2]chan error
	var held [2]*am.DeferredReply
	for i := range ends {
		ends[i] = make(chan error, 1)
		go func() { _, err := h.Call(ctx, l[0], 1); ends[i] <- err }()
		select {
		case held[i] = <-tokens:
		case <-ctx.Done():
			t.Fatal("a call does not arrive")
		}
		if i == 1 {
			eventually(t, "the second is parked", func() bool { return l[0].Stats().Parks > 0 })
		}
	}
	for i := range ends {
		if err := held[i].Reply(); err != nil {
			t.Error(err)
		}
		if err := <-ends[i]; err != nil {
			t.Error(err)
		}
	}
}

// The suite finds every planted fault, by what should find it, and nothing without one.
func TestTheSuiteFindsPlantedFaults(t *testing.T) {
	if name := os.Getenv(plantEnv); name != "" {
		defer am.Plant(name)()
		r := &simulation{cfg: sim.Config{Seed: 11, MaxTime: time.Minute, MaxEvents: 3e6}}
		if crowd(t); t.Failed() {
			return
		}
		amtest.Run(t, amtest.Options{New: r.ranks, Kill: r.kill, Host: r, Rounds: 60, Patience: 8 * time.Second})
		return
	}
	const asleep = "|polled [1-9][0-9]* times, rank 1 keeps 0 replies" // which a busy machine shows sooner
	for name, says := range map[string]string{
		"none":               "",
		"reply takes credit": "keeps [1-9][0-9]* replies",
		"no look":            "waits for a credit .* in the queue" + asleep,
		"no hand-over":       `call "hold" to rank 1: context deadline exceeded` + asleep,
		"no poll":            "polled 0 times",
		"spare late":         "handlers may not run",
		"double return":      "replies to no call",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheSuiteFindsPlantedFaults$", "-test.v", "-test.failfast", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s", plantEnv, name))
			out, err := cmd.CombinedOutput()
			if found := err != nil; found != (name != "none") {
				t.Fatalf("found: %v\n%s", found, out)
			}
			if !regexp.MustCompile(says).Match(out) {
				t.Errorf("found by something else than %q:\n%s", says, out)
			}
		})
	}
}
