package peer

import (
	"errors"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// The whole command lines, since they say what is compared.
func TestEachPeerHasAToolForAPoint(t *testing.T) {
	ibv := &Comparison{Plan: &plan.Plan{Fabric: "ibv", Device: "sv0"}, Port: 1, GID: 2}
	const of, dev = "-F -d sv0 -i 1 -x 2 -n 1000 ", " -x rc_verbs -d sv0:1 -s "
	lat := func(op string, size int64) plan.Point {
		return plan.Point{Kind: plan.Lat, Op: op, Size: size, Depth: 1, Iters: 1000}
	}
	many := func(kind, op string, size int64, depth int) plan.Point {
		return plan.Point{Kind: kind, Op: op, Size: size, Depth: depth, Iters: 1000}
	}
	for _, c := range []struct {
		peer  string
		c     *Comparison
		pt    plan.Point
		want  string
		times float64
	}{
		{Perftest, ibv, lat(plan.Put, 8), "ib_write_lat " + of + "-s 8", 1},
		{Perftest, ibv, lat(plan.Get, 4096), "ib_read_lat " + of + "-s 4096", 1},
		{Perftest, ibv, lat(plan.AMO, 8), "ib_atomic_lat " + of + "-A FETCH_AND_ADD", 1},
		{Perftest, ibv, lat(plan.AM, 0), "ib_send_lat " + of + "-s 8", 2},
		{Perftest, ibv, many(plan.BW, plan.Put, 65536, 128), "ib_write_bw " + of + "-s 65536", 1},
		{Perftest, ibv, many(plan.BW, plan.AM, 4096, 64), "ib_send_bw " + of + "-t 64 -s 4096", 1},
		{Perftest, ibv, many(plan.Rate, plan.AMO, 8, 64), "ib_atomic_bw " + of + "-t 64 -A FETCH_AND_ADD", 1},
		{UCX, ibv, lat(plan.Put, 8), "ucx_perftest -t put_lat -D short" + dev + "8 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.Put, 4096), "ucx_perftest -t put_lat -D zcopy" + dev + "4096 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.Get, 8), "ucx_perftest -t get -D bcopy -O 1" + dev + "8 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.Get, 4096), "ucx_perftest -t get -D zcopy -O 1" + dev + "4096 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.AMO, 8), "ucx_perftest -t fadd -O 1" + dev + "8 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.AM, 0), "ucx_perftest -t am_lat -D short" + dev + "8 -n 1000 -w 100", 2},
		{UCX, ibv, lat(plan.AM, 4096), "ucx_perftest -t am_lat -D bcopy" + dev + "4096 -n 1000 -w 100", 2},
	} {
		got, ok := peers[c.peer].test(c.c, c.pt)
		if line := strings.Join(append([]string{got.tool}, got.args...), " "); !ok || line != c.want || got.times != c.times {
			t.Errorf("%s, %s: %s, times %g, %t; want %s, times %g", c.peer, c.pt.Name(), line, got.times, ok, c.want, c.times)
		}
	}
	if got, ok := peers[Perftest].test(ibv, lat(plan.CAS, 8)); ok {
		t.Errorf("lat cas: %+v", got)
	}
}

func TestMissingPeersSayHowToInstallThem(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, c := range map[string]struct {
		err  error
		says string
	}{Perftest: {ErrMissing, "apt-get install perftest"}} {
		pt := plan.Point{Kind: plan.Lat, Op: plan.Get, Size: 8, Depth: 1, Lanes: 1, Iters: 10}
		x := &Comparison{Peer: name, Plan: &plan.Plan{Fabric: "shm", Points: []plan.Point{pt}}}
		if _, err := x.Run(t.Context()); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
