package transient

import (
	"encoding/json"
	"fmt"
	"github.com/ibconduit/conduit/bench"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/memgroup"
	"os"
	"strconv"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == RankArg {
		os.Exit(RankMain())
	}
	os.Exit(m.Run())
}

func TestTry(t *testing.T) {
	sw, err := memgroup.MakeSwap(os.TempDir(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer sw.Remove()
	lim, _ := strconv.Atoi(os.Getenv("LIM"))
	edge, _ := strconv.Atoi(os.Getenv("EDGE"))
	width, _ := strconv.Atoi(os.Getenv("WIDTH"))
	lo, _ := strconv.Atoi(os.Getenv("LO"))
	hi, _ := strconv.Atoi(os.Getenv("HI"))
	st, _ := strconv.Atoi(os.Getenv("STEP"))
	its, _ := strconv.Atoi(os.Getenv("ITS"))
	for c := lo; c <= hi; c += st {
		for _, arm := range []string{"normal", "fetch", "tokens"} {
			p := bench.JacobiParams{Arm: arm, Cubes: c, Edge: edge, Width: width, Iterations: its}
			r := Run{Kernel: Jacobi, Params: p, Ranks: 2, Fabric: "shm", Limit: int64(lim) << 20, Timeout: 60 * time.Second, Stderr: os.Stderr}
			begin := time.Now()
			res, err := r.Start(t.Context())
			if err != nil {
				fmt.Println(c, arm, err)
				continue
			}
			for _, b := range res {
				var j JacobiRank
				json.Unmarshal(b, &j)
				fmt.Printf("%d %-7s P=%.1f before=%.1f peak=%.1f inflight=%.1f faults=%d elapsed=%v (%v)\n", c, arm, float64(j.Sizes.Persistent)/(1<<20), float64(j.Before)/(1<<20), float64(j.Peak)/(1<<20), float64(j.Sizes.InFlight)/(1<<20), j.Faults, j.Elapsed, time.Since(begin))
			}
		}
	}
}
