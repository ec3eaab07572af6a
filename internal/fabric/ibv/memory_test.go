//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/racetest"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/segment"
)

// footprint is the memory of this process.
type footprint struct {
	heap    int64 // bytes of Go's heap
	rest    int64 // bytes of anonymous memory beside it
	objects int   // of the device
	told    int   // bytes that a rank told all others in Connect
}

func (a footprint) less(b footprint) footprint {
	return footprint{a.heap - b.heap, a.rest - b.rest, a.objects - b.objects, a.told - b.told}
}

func measured() (f footprint) {
	debug.FreeOSMemory() // twice: finalizers and pools hold on to some for one collection
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			f.rest = n<<10 - int64(m.HeapInuse)
		}
	}
	f.heap, f.objects = int64(m.HeapAlloc), len(handle.Live())
	return f
}

// fakeJob connects two ranks of a job of size, in which the others do not exist. It returns what
// both take after they have talked to each other.
func fakeJob(t *testing.T, size int, cfg Config, endpoints int) footprint {
	t.Helper()
	const live = 2
	before := measured()
	cfg.Device, cfg.GIDIndex, cfg.Size, cfg.Messages.Endpoints = rdmatest.Device(t), -1, size, endpoints
	if endpoints == 0 {
		cfg.Messages.Endpoints = -1
	}
	var nets [live]*Network
	var addrs [live][]byte
	for r := range live {
		m, err := segment.Map(segment.Config{Size: 1 << 16})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		cfg.Rank, cfg.Segment = r, m
		if nets[r], err = New(cfg); err != nil {
			t.Fatal(err)
		}
		defer nets[r].Close()
		addrs[r] = nets[r].Addr()
	}
	all := fakeAll(size, addrs)
	told := 0
	var mu sync.Mutex
	var blobs [2][live][]byte // by turn and rank
	both := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var wg sync.WaitGroup
	var errs [live]error
	for r, n := range nets {
		wg.Go(func() {
			turn := 0
			errs[r] = n.Connect(t.Context(), all, func(_ context.Context, blob []byte) ([][]byte, error) {
				mu.Lock()
				told = max(told, len(blob))
				blobs[turn][r] = append([]byte{}, blob...)
				if blobs[turn][0] != nil && blobs[turn][1] != nil {
					close(both[turn])
				}
				mu.Unlock()
				<-both[turn]
				turn++
				return fakeAll(size, blobs[turn-1]), nil
			})
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	all = nil
	for r, n := range nets {
		for i := range cfg.Lanes {
			l, err := n.NewLane()
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if _, err := l.Put(1-r, uint64(8*i), word(uint64(r+1)), fabric.Blocking); err != nil {
				t.Fatal(err)
			}
			if err := l.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range endpoints {
			p, err := n.NewEndpoint(i, endpointConfig)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
		}
	}
	f := measured().less(before)
	f.told = told
	runtime.KeepAlive(nets)
	return f
}

// fakeAll gives ranks that do not exist what the last of those that do has.
func fakeAll(size int, of [2][]byte) [][]byte {
	all := make([][]byte, size)
	for r := range all {
		all[r] = of[min(r, 1)]
	}
	return all
}

// What a rank keeps of each peer that it never uses, of two ranks in a job of 1,000 and of 10,000.
func TestARankThatIsNeverUsedTakes96Bytes(t *testing.T) {
	const few, many = 1000, 10000
	const peers = 2 * (many - few) // of both ranks
	perPeer := func(what string, cfg Config, endpoints int) float64 {
		a, b := fakeJob(t, few, cfg, endpoints), fakeJob(t, many, cfg, endpoints)
		d := b.less(a)
		if d.objects != 0 || d.told != 0 {
			t.Errorf("%s: %d objects of the device and %d bytes of the exchange more among %d ranks", what, d.objects, d.told, many)
		}
		t.Logf("%s: %.2f bytes for each peer; %d bytes told to each", what, float64(d.heap)/peers, b.told)
		return float64(d.heap) / peers
	}
	for _, eager := range []int{-1, 8} {
		cfg := Config{Lanes: 1, Depth: 16, Eager: eager}
		fakeJob(t, 3, cfg, 1) // what is made once
		one := perPeer("one lane", cfg, 0)
		cfg.Lanes = 5
		five := perPeer("five lanes", cfg, 0)
		cfg.Lanes = 1
		talking := perPeer("one lane and four endpoints", cfg, 4)
		lane, endpoint := (five-one)/4, (talking-one)/4
		if address := one - lane; address > 65 || lane > 16.5 || endpoint > 16.5 {
			t.Errorf("an address takes %.2f bytes of at most 64, a lane %.2f of 16, an endpoint %.2f of 16", address, lane, endpoint)
		}
	}
}

// What is outside of Go's heap, the provider's memory above all, does not grow with the ranks of
// the job. It is not known to the MiB, as Go's runtime takes and keeps some now and then.
func TestOtherMemoryDoesNotGrowWithTheJob(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector keeps memory for each byte of the heap; the other stages measure")
	}
	const few, many, slack = 1000, 50000, 8 << 20 // 86 bytes for each peer of a rank
	cfg := Config{Lanes: 8, Depth: 16, Eager: 8}
	least := [2]int64{math.MaxInt64, math.MaxInt64}
	for range 4 {
		for i, size := range []int{few, many} {
			least[i] = min(least[i], fakeJob(t, size, cfg, 2).rest)
		}
	}
	if d := least[1] - least[0]; d > slack {
		t.Errorf("%d bytes more among %d ranks than among %d", d, many, few)
	} else {
		t.Logf("%d bytes more among %d ranks than among %d", d, many, few)
	}
}
