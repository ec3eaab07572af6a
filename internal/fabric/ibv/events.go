//go:build linux && cgo

package ibv

import (
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// eventQueue is a queue of events. While Poll runs, they go into its caller's slice as far as that
// takes them.
type eventQueue struct {
	out  []fabric.Event           // of the Poll in progress
	n    int                      // events in out
	rest queue.Ring[fabric.Event] // those behind them
	more int                      // events in rest
}

// len is how many events there are.
func (q *eventQueue) len() int { return q.n + q.more }

// begin has events go to out from now on, first those that there are.
func (q *eventQueue) begin(out []fabric.Event) {
	if q.out, q.n = out, 0; q.more > 0 {
		q.refill()
	}
}

//go:noinline
func (q *eventQueue) refill() {
	for out := q.out; q.rest.Len() > 0 && q.n < len(out); q.n++ {
		out[q.n] = q.rest.Pop()
	}
	q.more = q.rest.Len()
}

// end returns how many events out has.
func (q *eventQueue) end() int {
	n := q.n
	q.out, q.n = q.out[:0], 0
	return n
}

func (q *eventQueue) push(e fabric.Event) { *q.next() = e }

// next is the place of an event that is added. All of it must be set at once.
func (q *eventQueue) next() *fabric.Event {
	if q.n < len(q.out) {
		q.n++
		return &q.out[q.n-1]
	}
	return q.behind()
}

// behind is next for an event that the caller's slice has no room for. If it were a part of next,
// next would be a part of nothing.
//
//go:noinline
func (q *eventQueue) behind() *fabric.Event {
	q.rest.Push(fabric.Event{})
	q.more = q.rest.Len()
	return q.rest.Item(q.more - 1)
}
