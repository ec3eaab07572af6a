package coll_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
)

// hosts is an Env whose rank sees the memory of those on its host alone, as over two networks.
type hosts struct {
	env.Env
	of   func(rank int) int
	puts *atomic.Int64 // bytes put to other hosts
}

func (h hosts) NewLanes() (env.Lanes, error) {
	l, err := h.Env.NewLanes()
	return hostLanes{l, h}, err
}

type hostLanes struct {
	env.Lanes
	h hosts
}

func (l hostLanes) To(rank int) fabric.Lane {
	if l.h.of(rank) == l.h.of(l.h.Rank()) {
		return l.Lanes.To(rank)
	}
	return farLane{l.Lanes.To(rank), l.h}
}

type farLane struct {
	fabric.Lane
	h hosts
}

func (farLane) Mapped(int) []byte { return nil }

func (l farLane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	l.h.puts.Add(int64(len(src)))
	return l.Lane.Put(peer, off, src, f)
}

// onHosts runs a program on ranks of which some share memory, and returns the bytes that went
// between hosts.
func onHosts(t *testing.T, n int, of func(rank int) int, c coll.Config, f program) int64 {
	t.Helper()
	spec, err := coll.Spec(n, c)
	if err != nil {
		t.Fatal(err)
	}
	var puts atomic.Int64
	envtest.SHM(t, n, func(ctx context.Context, e env.Env) error { return with(c, f)(ctx, hosts{e, of, &puts}) }, spec)
	return puts.Load()
}

func TestDataOfRanksOnSeveralHosts(t *testing.T) {
	for name, of := range map[string]func(rank int) int{
		"two by two":      func(r int) int { return r / 2 },
		"three and one":   func(r int) int { return r / 3 },
		"by turns":        func(r int) int { return r % 2 },
		"one and the two": func(r int) int { return (r + 2) / 3 },
	} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{3, 4} {
				onHosts(t, n, of, ways[1], allData)
			}
		})
	}
}

// Between hosts a long reduction sends what two ranks would send, however many a host has.
func TestHostsReduceBeforeTheySend(t *testing.T) {
	const n, length = 4, 100_000
	sent := onHosts(t, n, func(r int) int { return r / 2 }, coll.Config{}, func(ctx context.Context, e env.Env, all *coll.Team) error {
		buf := make([]int32, length)
		for i := range buf {
			buf[i] = int32(i * (e.Rank() + 1))
		}
		if err := coll.AllReduce(ctx, all, buf, coll.Sum); err != nil {
			return err
		}
		for i, v := range buf {
			if v != int32(i*10) {
				return fmt.Errorf("element %d is %d, want %d", i, v, i*10)
			}
		}
		return nil
	})
	// Each of two leaders sends half of the data and then half of the result.
	if least := int64(2 * 4 * length); sent < least || sent > least*11/10 {
		t.Errorf("%d bytes went between hosts, want %d and a tenth more at most", sent, least)
	}
}
