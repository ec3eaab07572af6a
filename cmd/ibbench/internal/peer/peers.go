package peer

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// Peers that points are compared with.
const (
	Perftest = "perftest"
	UCX      = "ucx"
)

// program is a peer.
type program struct {
	name    string
	missing error      // wrapped when a tool is not there
	judge   plan.Point // what tells whether the machine is quiet, if there is one
	test    func(c *Comparison, pt plan.Point) (test, bool)
	parse   func(text string, pt plan.Point) (*Output, error)
	version func(ctx context.Context, path string) string
}

// test is what measures the same as a point of ours.
type test struct {
	tool  string
	args  []string
	env   []string // empty: ours
	times float64  // what its figures are multiplied by, to be of our definition
}

// peers run a tool as a server and a client.
var peers = map[string]program{
	Perftest: {"perftest", ErrMissing, plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8}, (*Comparison).perftest,
		parsePerftest, Version},
	UCX: {"UCX", ErrNoUCX, plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8}, (*Comparison).ucxTest, parseUCX,
		ucxVersion},
}

// shortBytes are sent beside a Short: its one argument has as many.
const shortBytes = 8

// bytesOf is the size for a peer.
func bytesOf(pt plan.Point) int64 { return cmp.Or(pt.Size, shortBytes) }

// Timeout bounds a pair of processes.
const Timeout = 3 * time.Minute

// DefaultDepth is how many operations in flight perftest's tools have.
const DefaultDepth = 128

// perftest's tools. ib_send_lat reports half of a round trip, as all its kin do, and ours is a
// whole one.
func (c *Comparison) perftest(pt plan.Point) (t test, ok bool) {
	kind, name := pt.Kind, map[string]string{plan.Put: "write", plan.Get: "read", plan.AMO: "atomic",
		plan.AM: "send"}[pt.Op]
	if kind == plan.Rate {
		kind = plan.BW
	}
	if name == "" {
		return t, false
	}
	t = test{tool: "ib_" + name + "_" + kind, times: 1}
	if pt.Kind == plan.Lat && pt.Op == plan.AM {
		t.times = 2
	}
	// No warning about the processor's clock, our device, port and GID, our size and count. All else
	// is the tool's default.
	t.args = []string{"-F", "-d", c.Plan.Device, "-i", strconv.Itoa(c.Port), "-x", strconv.Itoa(c.GID), "-n",
		strconv.FormatInt(pt.Iters, 10)}
	if pt.Kind != plan.Lat && pt.Depth != DefaultDepth {
		t.args = append(t.args, "-t", strconv.Itoa(pt.Depth))
	}
	if pt.Atomic() {
		t.args = append(t.args, "-A", "FETCH_AND_ADD")
	} else {
		t.args = append(t.args, "-s", strconv.FormatInt(bytesOf(pt), 10))
	}
	t.args = append(t.args, c.Extra...)
	return t, true
}

func parsePerftest(text string, _ plan.Point) (*Output, error) { return Parse(text) }
