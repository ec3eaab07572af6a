package credit

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/counter"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/internal/parttest"
)

var (
	steps = flag.Int("steps", 0, "random steps of TestRandomSchedulesKeepTheAccounts (default 10 million; a tenth where parttest.Of says so)")
	seed  = flag.Uint64("seed", 1, "where random schedules start")
)

func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }

// worlds are the shapes of jobs: few credits for many, many for few.
var worlds = []PoolConfig{
	{Peers: 2, Credits: 1, Replies: 1},
	{Peers: 5, Credits: 3, Replies: 2},
	{Peers: 6, Credits: 24, Replies: 4, Config: Config{Window: 8}},
	{Peers: 4, Credits: 64, Replies: 8, Config: Config{Initial: 4}},
	{Peers: 3, Credits: 2, Replies: 0, Config: Config{Initial: -1}},
}

func (c PoolConfig) name() string {
	return fmt.Sprintf("peers=%d,credits=%d,replies=%d", c.Peers, c.Credits, c.Replies)
}

func TestRandomSchedulesKeepTheAccounts(t *testing.T) {
	n := cmp.Or(*steps, parttest.Of(10_000_000))
	for _, cfg := range worlds {
		t.Run(cfg.name(), func(t *testing.T) {
			w, err := newWorld(*seed, cfg, none)
			if err != nil {
				t.Fatal(err)
			}
			longest, err := w.run(n / len(worlds))
			if err != nil {
				t.Fatalf("seed %d: %v", *seed, err)
			}
			w.report(t, longest)
		})
	}
}

// report checks that the schedules went where the protocol is difficult.
func (w *world) report(t *testing.T, longest int) {
	var p PoolStats
	var s SenderStats
	for _, r := range w.ranks {
		p = counter.Add(p, r.pool.Stats())
		for _, sender := range r.senders {
			if sender != nil {
				s = counter.Add(s, sender.Stats())
			}
		}
	}
	t.Logf("%d requests, %d replies; %d granted, %d returned, %d reclaimed; %d recalls, %d repeated; %d dry, %d asks; %d stale headers; every sender sent within %d rounds",
		p.Arrivals, p.Replies, p.Granted, p.Returned, p.Reclaimed, p.Recalls, p.Retries, s.Dry, s.Asks, p.Stale, longest)
	if p.Arrivals == 0 || p.Replies == 0 && w.cfg.Replies > 0 || p.Reclaimed == 0 || p.Stale == 0 || s.Dry == 0 || s.Asks == 0 {
		t.Error("something never happened")
	}
	if w.cfg.Credits < w.cfg.Peers && w.cfg.Peers > 2 && (p.Recalls == 0 || p.Retries == 0 || p.Returned == 0) {
		t.Error("nothing was ever recalled, returned and asked for again")
	}
}

// The checks themselves: each fault must be caught, and by what should catch it.
func TestPlantedFaultsAreCaught(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault fault
		says  []string // one of these
	}{
		{"a reply takes a credit", replyTakesCredit, []string{"sent nothing"}},
		{"handlers run before spares are posted", handlersBeforeSpares, []string{"handlers may not run"}},
		{"spares are posted too late", spareLate, []string{"met no buffer"}},
		{"credits come back twice at a death", doubleReturn, []string{"free + held + bare = all"}},
		{"a recall under way is forgotten", recallForgotten, []string{"without a credit", "returned credits it never had", "one place", "balance + messages", "that was not made"}},
		{"epochs are not checked", epochUnchecked, []string{"balance", "that was not made", "granted beyond", "never had", "never made", "asked back more"}},
		{"a question is never repeated", neverAskedAgain, []string{"sent nothing"}},
		{"credits are never recalled", neverRecalled, []string{"sent nothing"}},
		{"a cancel after a reconnection counts", cancelUnchecked, []string{"credits used", "balance", "cancelled reply", "without a credit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := newWorld(*seed, PoolConfig{Peers: 5, Credits: 3, Replies: 2}, c.fault)
			if err != nil {
				t.Fatal(err)
			}
			_, err = w.run(1_000_000)
			if err == nil {
				t.Fatal("not caught")
			}
			for _, s := range c.says {
				if strings.Contains(err.Error(), s) {
					t.Log(err)
					return
				}
			}
			t.Errorf("caught by something else: %v", err)
		})
	}
}

// Many senders and few buffers, and every sender gets a turn.
func TestMoreSendersThanCreditsAllProgress(t *testing.T) {
	const senders, messages = 40, 5
	w, err := newWorld(*seed, PoolConfig{Peers: senders + 1, Credits: 3, Config: Config{Window: 3}}, none)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= senders; i++ {
		if err := errors.Join(w.open(0, i), w.open(i, 0)); err != nil {
			t.Fatal(err)
		}
	}
	w.calm = true
	for rounds := 0; ; rounds++ {
		least, most := ^uint64(0), uint64(0)
		waiting := map[[2]int]uint64{}
		for i := 1; i <= senders; i++ {
			sent := w.wires[i][0].sent
			least, most = min(least, sent), max(most, sent)
			waiting[[2]int{i, 0}] = sent
		}
		if least >= messages {
			t.Logf("all sent %d to %d messages in %d rounds", least, most, rounds)
			break
		}
		// A turn for each takes at least senders/credits rounds.
		if rounds > 10*messages*senders {
			t.Fatalf("after %d rounds some have sent %d, some %d: %s", rounds, least, most, w.ranks[0].pool.Describe(w.now))
		}
		if err := w.round(waiting); err != nil {
			t.Fatal(err)
		}
		if err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
}
