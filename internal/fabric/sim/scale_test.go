package sim

import (
	"context"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
)

// heapBytes is what lives on the heap and on stacks.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// perRank is the memory of a rank in a world of n with an endpoint, and the tasks' stacks.
func perRank(t *testing.T, n, peers int) int64 {
	before := heapBytes()
	w := newWorld(t, Config{Ranks: n, Seed: 1})
	var after int64
	w.At(time.Millisecond, func() { after = heapBytes() })
	err := w.Run(func(ctx context.Context, r *Rank) error {
		p, err := r.Net().NewEndpoint(0, fabric.EndpointConfig{Slots: 8, SlotSize: 64, Sends: 8})
		if err != nil {
			return err
		}
		for k := range peers {
			if err := send(p, (r.ID()+k+1)%n, 0); err != nil {
				return err
			}
		}
		return r.Sleep(ctx, 2*time.Millisecond)
	})
	must(t, err)
	runtime.KeepAlive(w)
	return (after - before) / int64(n)
}

// An unconnected peer costs nothing: a rank among thousands is no larger than one among 500.
func TestMemoryOfARankDoesNotGrowWithTheWorld(t *testing.T) {
	const noise = 4000 // bytes a rank: stacks that are cut or used again meanwhile
	many := max(manyRanks, 3000)
	_ = perRank(t, 500, 0) // what the runtime keeps
	small, large := perRank(t, 500, 0), perRank(t, many, 0)
	for range 2 {
		small, large = max(small, perRank(t, 500, 0)), min(large, perRank(t, many, 0))
	}
	connected := perRank(t, min(2000, manyRanks), 8)
	t.Logf("%d bytes a rank among 500, %d among %d; %d with 16 connected peers", small, large, many, connected)
	if large > small+noise { // a pointer to each rank would make 8 bytes for each
		t.Errorf("%d bytes a rank among %d, %d among 500", large, many, small)
	}
	if limit := large + 16*2048; connected > limit {
		t.Errorf("%d bytes with 16 connected peers, want at most %d", connected, limit)
	}
}

func TestManyRanksExchangeRandomMail(t *testing.T) {
	w := newWorld(t, Config{Ranks: manyRanks, Seed: 1, Connections: 64})
	must(t, (mail{count: 4, batch: 4, size: 16, slots: 64}).run(w))
}

// cpu is the processor time of the process.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkMessages counts messages from Send to Post, each checked by its receiver. In
// the first worlds the same few pairs talk; in the last nearly every message makes a connection.
func BenchmarkMessages(b *testing.B) {
	for _, c := range []struct {
		name         string
		ranks, peers int
	}{
		{"ranks=2", 2, 1},
		{"ranks=100", 100, 8},
		{"ranks=10000/peers=8", 10_000, 8},
		{"ranks=10000/peers=all", 10_000, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, Config{Ranks: c.ranks, Seed: 1})
			m := mail{batch: 16, size: 32, slots: 256, peers: c.peers, count: max(1, b.N/c.ranks)}
			before := cpu()
			b.ResetTimer()
			must(b, m.run(w))
			n := float64(m.count * c.ranks)
			b.ReportMetric(n/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(float64(cpu()-before)/n, "cpu-ns/message")
			b.ReportMetric(float64(w.Events())/n, "events/message")
			b.ReportMetric(float64(w.RNR()), "rnr")
		})
	}
}
