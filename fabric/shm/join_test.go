package shm

import (
	"encoding/binary"
	"testing"

	"github.com/ibconduit/conduit/fabric"
)

func TestEveryRankReachesEveryOther(t *testing.T) {
	for _, n := range []int{1, 2, 8, 64} {
		nets := joinAll(t, n, 64*8)
		for r, net := range nets {
			l := newLane(t, net)
			var b [8]byte
			binary.NativeEndian.PutUint64(b[:], uint64(r+1))
			for p := range nets {
				if _, err := l.Put(p, uint64(8*r), b[:], 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		for p, net := range nets {
			for r := range nets {
				if got := binary.NativeEndian.Uint64(net.cfg.Segment.Bytes()[8*r:]); got != uint64(r+1) {
					t.Fatalf("%d ranks: rank %d finds %d from rank %d", n, p, got, r)
				}
			}
		}
	}
}

func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{8, 64} {
		b.Run(map[int]string{8: "ranks=8", 64: "ranks=64"}[n], func(b *testing.B) {
			for b.Loop() {
				nets := joinAll(b, n, 4096)
				for _, n := range nets {
					n.Close()
				}
			}
		})
	}
}

func BenchmarkLane(b *testing.B) {
	nets := joinAll(b, 2, 4<<20)
	var l fabric.Lane = newLane(b, nets[0])
	for _, size := range []int{8, 64, 4096, 65536, 1 << 20} {
		buf := make([]byte, size)
		name := map[int]string{8: "8", 64: "64", 4096: "4K", 65536: "64K", 1 << 20: "1M"}[size]
		b.Run("put/"+name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				l.Put(1, 64, buf, 0)
			}
		})
		b.Run("get/"+name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				l.Get(1, 64, buf, 0)
			}
		})
	}
	b.Run("fetch-add", func(b *testing.B) {
		for b.Loop() {
			l.Atomic(fabric.FetchAdd, 1, 64, 1, 0, 0)
		}
	})
	b.Run("flush", func(b *testing.B) {
		for b.Loop() {
			l.Flush(b.Context())
		}
	})
}
