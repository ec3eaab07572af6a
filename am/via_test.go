package am_test

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
)

// byRank is a Via with an endpoint for each rank, as a job on several networks is one.
type byRank []*am.Endpoint

func (v byRank) Endpoint(rank int) *am.Endpoint {
	if rank < 0 || rank >= len(v) {
		return v[0]
	}
	return v[rank]
}

func TestARequestGoesThroughTheLaneThatItsViaNames(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("where", func(c *am.Call) { _ = c.Reply(uint64(c.Endpoint().Rank()), uint64(c.From())) })
	one, other := endpoints(t, amtest.NewMemory(3, 64), 3, am.Config{Table: table}), endpoints(t, amtest.NewMemory(3, 64), 3, am.Config{Table: table})
	v := byRank{one[0], one[0], other[0]}
	for rank := range 3 {
		r, err := h.Call(bounded(t), v, rank)
		if err != nil || r.Arg(0) != uint64(rank) || r.Arg(1) != 0 {
			t.Errorf("rank %d answered %v, %v", rank, r.Args(), err)
		}
	}
	if a, b := one[1].Stats().Requests, one[2].Stats().Requests; a != 1 || b != 0 {
		t.Errorf("the first network brought %d requests to rank 1 and %d to rank 2, want 1 and 0", a, b)
	}
	if n := other[2].Stats().Requests; n != 1 {
		t.Errorf("the second network brought %d requests to rank 2, want 1", n)
	}
	var bad *fabric.RankError
	if err := h.Post(bounded(t), v, 3); !errors.As(err, &bad) {
		t.Errorf("a rank that does not exist: %v", err)
	}
}

func TestARequestNeedsAnEndpoint(t *testing.T) {
	h := am.NewTable().Handle("nowhere", func(*am.Call) {})
	ctx := context.Background()
	for name, v := range map[string]am.Via{"nil": nil, "no endpoint": (*am.Endpoint)(nil), "a job without handlers": byRank{nil}} {
		_, call := h.Call(ctx, v, 0)
		_, with := h.CallWith(ctx, v, 0, am.Medium(nil))
		_, start := h.Start(ctx, v, 0, am.Payload{})
		_, prepare := h.Prepare(ctx, v, 0, 8)
		_, tryPrepare := h.Prepare(am.NoWait, v, 0, 8)
		for i, err := range []error{call, with, start, prepare, tryPrepare, h.Post(ctx, v, 0), h.PostWith(ctx, v, 0, am.Medium(nil)),
			h.Post(am.NoWait, v, 0), h.PostWith(am.NoWait, v, 0, am.Medium(nil))} {
			if !errors.Is(err, am.ErrNoEndpoint) {
				t.Errorf("%s, request %d: %v", name, i, err)
			}
		}
	}
}

// An endpoint that hears of a death from elsewhere ends what waits for that rank, although its
// network says nothing.
func TestAReportedDeathEndsCallsToThatRankOnly(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("late", func(c *am.Call) { c.Defer(time.Minute) })
	closed := make(chan int, 4)
	l := endpoints(t, amtest.NewMemory(3, 64), 3, am.Config{Table: table, OnClosed: func(rank int, _ error) { closed <- rank }})
	dead, err := h.Start(bounded(t), l[0], 1, am.Payload{})
	if err != nil {
		t.Fatal(err)
	}
	alive, err := h.Start(bounded(t), l[0], 2, am.Payload{})
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("the launcher says so")
	l[0].PeerDown(1, cause)
	l[0].PeerDown(1, errors.New("for the second time"))
	l[0].PeerDown(0, cause) // itself, and nobody: ignored
	l[0].PeerDown(3, cause)
	l[0].PeerDown(-1, cause)
	if _, err = dead.Wait(bounded(t)); !errors.Is(err, fabric.ErrPeerDown) || !errors.Is(err, cause) {
		t.Errorf("the call to the dead rank ended with %v", err)
	}
	if _, err = h.Call(bounded(t), l[0], 1); !errors.Is(err, cause) {
		t.Errorf("a later call: %v", err)
	}
	if _, done, err := alive.Test(); done {
		t.Errorf("the call to another rank ended too: %v", err)
	}
	if got := <-closed; got != 1 || len(closed) != 0 {
		t.Errorf("OnClosed was told of rank %d first, and %d more times", got, len(closed))
	}
}

// refusing is a network that knew of a death before it had the port: no event tells, notes are
// refused.
type refusing struct{ fabric.Messenger }

type refusingPort struct{ fabric.Endpoint }

func (n refusing) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	p, err := n.Messenger.NewEndpoint(i, cfg)
	return refusingPort{p}, err
}

func (p refusingPort) Note(peer int, _ []byte) error {
	return &fabric.PeerDownError{Rank: peer, Op: "note", Cause: errors.New("died long ago")}
}

func TestARefusedNoteToADeadRankIsItsDeath(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("x", func(*am.Call) {})
	m := amtest.NewMemory(2, 64)
	l, err := am.Open(refusing{m.Rank(0)}, 0, am.Config{Rank: 0, Size: 2, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := h.Call(bounded(t), l, 1); !errors.Is(err, fabric.ErrPeerDown) || !strings.Contains(err.Error(), "died long ago") {
		t.Errorf("a call to it: %v", err)
	}
}

// Posts have no reply: when all have returned from Quiesce, and met, Drain handles them.
func TestDrainHandlesEveryPost(t *testing.T) {
	table := am.NewTable()
	var ran atomic.Uint64
	h := table.Handle("count", func(*am.Call) { time.Sleep(time.Millisecond); ran.Add(1) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, AttendAfter: -1})
	const posts = 40
	posted := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range posts {
			if err := h.Post(bounded(t), l[0], 1); err != nil {
				posted <- err
				return
			}
		}
		posted <- l[0].Quiesce(bounded(t))
	}()
	for open := true; open; { // rank 1 grants credits until rank 0 has sent everything
		select {
		case <-done:
			open = false
		default:
			if _, err := l[1].Test(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-posted; err != nil {
		t.Fatal(err)
	}
	if err := l[1].Drain(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if ran.Load() != posts {
		t.Errorf("%d of %d posts were handled", ran.Load(), posts)
	}
}

// number gives every number in a structure a value of its own.
func number(v reflect.Value, next *int) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			number(f, next)
		case reflect.Int:
			*next++
			f.SetInt(int64(*next))
		default:
			*next++
			f.SetUint(uint64(*next))
		}
	}
}

func TestTheSumOfStatsHasTheSumOfEachField(t *testing.T) {
	var s am.Stats
	n := 0
	number(reflect.ValueOf(&s).Elem(), &n)
	if n < 50 {
		t.Fatalf("only %d fields", n)
	}
	var twice func(sum, one reflect.Value)
	twice = func(sum, one reflect.Value) {
		for i := range sum.NumField() {
			x, y := sum.Field(i), one.Field(i)
			switch {
			case x.Kind() == reflect.Struct:
				twice(x, y)
			case x.CanInt() && x.Int() != 2*y.Int() || x.CanUint() && x.Uint() != 2*y.Uint():
				t.Errorf("%s is %v, want twice %v", sum.Type().Field(i).Name, x, y)
			}
		}
	}
	twice(reflect.ValueOf(s.Add(s)), reflect.ValueOf(s))
}

func TestTermsAreWhatRanksMustAgreeOn(t *testing.T) {
	terms := func(c am.Config) map[string]uint64 {
		t.Helper()
		list, err := c.Terms()
		if err != nil {
			t.Fatal(err)
		}
		m := make(map[string]uint64)
		for _, x := range list {
			m[x.Name] = x.Value
		}
		return m
	}
	unset, set := terms(am.Config{}), terms(am.Config{Credits: 256, MaxMedium: 4096, Replies: 3, SpinFor: 5})
	if !reflect.DeepEqual(unset, set) {
		t.Errorf("the defaults are %v, and the same values given are %v", unset, set)
	}
	if other := terms(am.Config{Credits: 8}); other["Credits"] != 8 || other["Flow.Window"] != 8 {
		t.Errorf("with 8 credits: %v", other)
	}
	if _, err := (am.Config{MaxMedium: 1}).Terms(); err == nil {
		t.Error("a configuration with which no endpoint opens has terms")
	}
}

func TestAHandlerThatEndsItsGoroutinePanics(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("quits", func(*am.Call) { runtime.Goexit() })
	ls := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	said := make(chan any)
	go func() {
		defer func() { said <- recover() }()
		_, _ = h.Call(bounded(t), ls[0], 0) // to itself, so that it runs here
	}()
	if v := <-said; v == nil || !strings.Contains(v.(string), `"quits" called runtime.Goexit`) {
		t.Errorf("panicked with %v", v)
	}
}
