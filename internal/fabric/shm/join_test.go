package shm

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
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
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			for b.Loop() {
				for _, n := range joinAll(b, n, 4096) {
					n.Close()
				}
			}
		})
	}
}

// BenchmarkLane compares operations through the interface with the bare copy
// of as many bytes between the same memory.
func BenchmarkLane(b *testing.B) {
	nets := joinAll(b, 2, 4<<20)
	var l fabric.Lane = newLane(b, nets[0])
	peer := l.Mapped(1)[64:]
	for _, size := range []int{8, 64, 4096, 65536, 1 << 20} {
		buf := make([]byte, size)
		for name, f := range map[string]func(){
			"copy": func() { copy(peer, buf) },
			"put":  func() { l.Put(1, 64, buf, 0) },
			"get":  func() { l.Get(1, 64, buf, 0) },
		} {
			b.Run(fmt.Sprintf("op=%s/bytes=%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					f()
				}
			})
		}
	}
	b.Run("op=fetch-add", func(b *testing.B) {
		for b.Loop() {
			l.Atomic(1, 64, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
		}
	})
	b.Run("op=flush", func(b *testing.B) {
		for b.Loop() {
			l.Flush(b.Context())
		}
	})
}
