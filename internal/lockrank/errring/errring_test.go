package errring

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestRingKeepsTheLastErrorsInOrder(t *testing.T) {
	var r Ring
	if got := r.Snapshot(); len(got) != 0 {
		t.Fatalf("empty ring has %d entries", len(got))
	}
	for i := range Size + 10 {
		r.Add(time.Duration(i), i, fmt.Errorf("error %d", i))
	}
	got := r.Snapshot()
	if len(got) != Size {
		t.Fatalf("%d entries, want %d", len(got), Size)
	}
	for i, e := range got {
		if want := i + 10; e.Seq != uint64(want) || e.Peer != want || e.Err.Error() != fmt.Sprintf("error %d", want) {
			t.Fatalf("entry %d is %+v, want number %d", i, e, want)
		}
	}
}

// An entry has the same number in all of its fields, which a torn one would not.
func TestConcurrentReadersSeeWholeEntriesInOrder(t *testing.T) {
	var r Ring
	const writers, each = 4, 3 * Size
	causes := make([]error, writers*each)
	for i := range causes {
		causes[i] = errors.New(fmt.Sprint(i))
	}
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		reading.Go(func() {
			for {
				snapshot := r.Snapshot()
				for i, e := range snapshot {
					if int(e.At) != e.Peer || e.Err != causes[e.Peer] {
						t.Errorf("torn entry %+v", e)
						return
					}
					if i > 0 && snapshot[i-1].Seq >= e.Seq {
						t.Errorf("entry %d after %d", e.Seq, snapshot[i-1].Seq)
						return
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for i := w * each; i < (w+1)*each; i++ {
				r.Add(time.Duration(i), i, causes[i])
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	// No writer is left: exactly the last turn is there.
	got := r.Snapshot()
	if len(got) != Size || got[0].Seq != writers*each-Size || got[Size-1].Seq != writers*each-1 {
		t.Errorf("%d entries from %d to %d", len(got), got[0].Seq, got[len(got)-1].Seq)
	}
}

func TestOvertakenWriterKeepsANewerEntry(t *testing.T) {
	var r Ring
	r.slots[0].Store(&Entry{Seq: Size, Err: errors.New("new")}) // a turn ahead of the writer below
	r.Add(0, -1, errors.New("old"))
	if e := r.slots[0].Load(); e.Seq != Size {
		t.Errorf("slot has number %d, want %d", e.Seq, Size)
	}
}

func BenchmarkAdd(b *testing.B) {
	var r Ring
	err := errors.New("x")
	b.ReportAllocs()
	for b.Loop() {
		r.Add(0, 1, err)
	}
}
