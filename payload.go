package conduit

import (
	"context"
	"fmt"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/transient"
)

type payload = transient.Payload

// Payload is what another rank has sent (MemoryConfig.Payloads), in memory of this rank's budget.
//
// Its methods are those of [transient.Payload] too: From is the rank that sent it, Args and Arg are
// its arguments, Data is the payload, which may be written, and Release gives its memory back to
// the budget: then nothing may use the data any more.
type Payload struct {
	*payload
	job *Job
}

// Job is the job of the rank that has the payload.
func (p *Payload) Job() *Job { return p.job }

// SendPayload sends a payload to the function of that name at a rank (MemoryConfig.Payloads), with
// at most 14 arguments, and returns when it may be reused. The receiver's budget has memory for it
// before it is sent: SendPayload waits until then, holding nothing, and ranks that send to one have
// equal parts of its memory. A short payload goes at once where the receiver allows it. Payloads
// may arrive in any order. The end of ctx withdraws a payload that was not sent. Any goroutine may
// call it, but no handler. Errors: an *am.RefusedError with the receiver's reason (no such
// function, larger than its budget or its ReceiveSize); a *PeerDownError; as of [am.Large.Send].
func SendPayload(ctx context.Context, v am.Via, rank int, name string, payload []byte, args ...uint64) error {
	var j *Job
	switch v := v.(type) {
	case *Job:
		j = v
	case *Worker:
		if err := v.enter("send payload"); err != nil {
			return err
		}
		defer v.exit()
		if err := v.release(ctx); err != nil {
			return err
		}
		j = v.job
	default:
		return fmt.Errorf("conduit: send payload %q: %w", name, am.ErrNoEndpoint)
	}
	if j.members.has(left) {
		return errClosed("send payload", "job")
	}
	return j.memory.SendPayload(ctx, rank, name, payload, args...)
}
