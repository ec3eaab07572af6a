package measure

import (
	"context"
	"math/bits"

	"github.com/ibconduit/conduit"
)

// op selects the operation.
type op uint8

const (
	pingWord    op = iota // a message of one word
	pingOrdered           // a message whose word is put separately, after the rest
	pingWhole             // a message that is one put
	putWord
	putBytes
	getWord
	getBytes
	fetchAdd
	compareSwap
	call
	post
)

// latency is one side of a latency measurement.
type latency struct {
	ctx context.Context
	w   *conduit.Worker
	op  op
	samples
	period float64 // ns between two operations of an open loop; 0: closed loop

	seq  uint64 // number of the last message; operations done, of atomics
	mask uint64 // the part of seq that fits into the message
	mark uint64 // offset of the own word that a message ends with

	dst  conduit.Ptr[byte]   // the peer's place for the message
	word conduit.Ptr[uint64] // the word that ends it
	src  []byte              // the message, in the local memory
	body []byte              // the message without its last word
	tail *uint64             // the last word of src
	sink uint64

	size, begin uint64
	calls       *caller // of active messages

	t       []int64           // readings of the clock, or durations in an open loop and at a depth
	pending []conduit.Pending // as many as are in flight at a depth; nil: one operation after the other
	elapsed int64             // of the last stretch
}

// number is how message seq is marked: big-endian, so that the byte that
// changes each time is the last one.
func (l *latency) number() uint64 { return bits.ReverseBytes64(l.seq & l.mask) }

// send puts message seq to the peer.
func (l *latency) send() error {
	switch l.op {
	case pingWord:
		return conduit.PutNBI(l.w, l.word, l.number())
	case pingOrdered:
		if err := conduit.PutSliceNBI(l.w, l.dst, l.body); err != nil {
			return err
		}
		return conduit.PutNBI(l.w, l.word, l.number())
	}
	// The peer's answer to the last message proves that it has left this buffer.
	*l.tail = l.number()
	return conduit.PutSliceNBI(l.w, l.dst, l.src)
}

// wait blocks until message seq has come.
func (l *latency) wait() error {
	return l.w.WaitUntil(l.ctx, l.mark, conduit.Equal, l.number())
}

// repeat does one operation k times, each complete before the next.
func (l *latency) repeat(k int) (err error) {
	switch l.op {
	case putWord:
		for range k {
			if err = conduit.Put(l.w, l.word, *l.tail); err != nil {
				return err
			}
		}
	case putBytes:
		for range k {
			if err = conduit.PutSlice(l.w, l.dst, l.src); err != nil {
				return err
			}
		}
	case getWord:
		for range k {
			if *l.tail, err = conduit.Get(l.w, l.word); err != nil {
				return err
			}
		}
	case getBytes:
		for range k {
			if err = conduit.GetSlice(l.w, l.src, l.dst); err != nil {
				return err
			}
		}
	case fetchAdd:
		for range k {
			if l.sink, err = conduit.FetchAdd(l.w, l.word, 1); err != nil {
				return err
			}
		}
		l.seq += uint64(k)
	case compareSwap:
		for range k {
			if l.sink, err = conduit.CompareSwap(l.w, l.word, l.seq, l.seq+1); err != nil {
				return err
			}
			l.seq++
		}
	case call:
		return l.calls.repeat(l.ctx, k)
	default:
		for range k {
			l.seq++
			if err = l.send(); err != nil {
				return err
			}
			if err = l.wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

// respond answers k messages.
func (l *latency) respond(k int64) error {
	if l.calls != nil {
		return l.calls.m.serve(l.ctx)
	}
	for range k {
		l.seq++
		if err := l.wait(); err != nil {
			return err
		}
		if err := l.send(); err != nil {
			return err
		}
	}
	return l.w.Flush(l.ctx)
}

// run does n samples. In a closed loop one more precedes them, which is not
// counted: the peer may only be on its way.
func (l *latency) run(n int) error {
	switch {
	case l.period > 0:
		return l.paced(n)
	case l.pending != nil:
		return l.windowed(n)
	}
	t := l.t[:n+2]
	for i := range t[:n+1] {
		t[i] = now()
		if err := l.repeat(l.batch); err != nil {
			return err
		}
	}
	t[n+1] = now()
	l.elapsed = t[n+1] - t[1]
	if l.op > pingWhole {
		return nil // nothing is left in flight
	}
	return l.w.Flush(l.ctx)
}

// paced starts operation i at i periods after the first, or as soon as it can,
// and measures from when it was due.
func (l *latency) paced(n int) error {
	begin := now()
	for i := range l.t[:n] {
		due := begin + int64(float64(i)*l.period)
		for now() < due {
		}
		if err := l.repeat(1); err != nil {
			return err
		}
		l.t[i] = now() - due
	}
	l.elapsed = now() - begin
	return l.w.Flush(l.ctx)
}

// windowed keeps several operations in flight; each is measured from its start until it is seen
// complete, in order.
func (l *latency) windowed(n int) error {
	begin, depth := now(), len(l.pending)
	for i := range n + depth {
		at := i % depth
		if i >= depth && i-depth < n {
			if err := l.pending[at].Wait(l.ctx); err != nil {
				return err
			}
			l.t[i-depth] = now() - l.t[i-depth]
		}
		if i < n {
			l.t[i] = now()
			l.pending[at] = l.start()
		}
	}
	l.elapsed = now() - begin
	return nil
}

// start starts one operation without waiting.
func (l *latency) start() conduit.Pending {
	switch l.op {
	case putWord, putBytes:
		return conduit.PutSliceAsync(l.w, l.dst, l.src)
	case getWord, getBytes:
		return conduit.GetSliceAsync(l.w, l.src, l.dst)
	case fetchAdd:
		l.seq++
		return conduit.FetchAddAsync(l.w, l.word, 1).Pending
	}
	l.seq++
	return conduit.CompareSwapAsync(l.w, l.word, l.seq-1, l.seq).Pending
}

// messages is how many operations a stretch of n samples has.
func (l *latency) messages(n int64, paced bool) int64 {
	if paced || l.pending != nil {
		return n
	}
	return (n + 1) * int64(l.batch)
}

// times are the durations of the last stretch, in the order of their starts.
func (l *latency) times(n int) []int64 {
	if l.period > 0 || l.pending != nil {
		return l.t[:n]
	}
	t := l.t[:n+2]
	for i := range n {
		t[i] = t[i+2] - t[i+1]
	}
	return t[:n]
}
