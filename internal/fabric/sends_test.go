package fabric

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// TestSendBuffersAreFreeOrTaken: whatever is done in whatever order, each buffer is either free or
// taken, and those that are not Urgent leave the reserved ones.
func TestSendBuffersAreFreeOrTaken(t *testing.T) {
	const sends, reserved = 9, 3
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var s SendBuffers
		s.Open(EndpointConfig{Sends: sends, Reserved: reserved})
		held, sent := map[int32]bool{}, map[int32]bool{}
		for range 300 {
			id := int32(rnd.IntN(sends+2) - 1)
			switch rnd.IntN(3) {
			case 0:
				flag := SendFlag(rnd.IntN(2)) * Urgent
				got, err := s.Reserve(flag)
				if err == nil {
					if held[got] || sent[got] || s.Urgent(got) != (flag == Urgent) {
						t.Fatalf("seed %d: Reserve gives buffer %d, which is taken or of the other kind", seed, got)
					}
					held[got] = true
				} else if !errors.Is(err, ErrNoBuffer) || s.Left() > 0 && flag == Urgent {
					t.Fatalf("seed %d: Reserve with %d free: %v", seed, s.Left(), err)
				}
			case 1:
				if err := s.Take("send", id); (err == nil) != held[id] {
					t.Fatalf("seed %d: Take of buffer %d, held %v: %v", seed, id, held[id], err)
				} else if err == nil {
					delete(held, id)
					sent[id] = true
				}
			default:
				if sent[id] {
					s.Free(id)
					delete(sent, id)
				}
			}
			taken, common := 0, 0
			for i := range s.all {
				if s.all[i].state.Load() != bufferFree {
					taken++
					if !s.all[i].urgent {
						common++
					}
				}
			}
			if taken != len(held)+len(sent) || taken+s.Left() != sends || common != s.common || common > sends-reserved ||
				s.Scarce() != (s.Left() <= sends/2) {
				t.Fatalf("seed %d: %d taken, %d of them not urgent (%d counted), %d free", seed, taken, common, s.common, s.Left())
			}
		}
	}
}
