//go:build linux && cgo

package ibv

import (
	"sync"
	"time"

	"github.com/ibconduit/conduit/verbs"
)

// rnrCounter counts the messages that met no slot. RC has no completion for it: the device repeats
// the message, and counts. It counts for all queue pairs of its port, hence another port of the
// same device shows here, too; the lanes receive nothing and do not.
type rnrCounter struct {
	device string
	port   int

	mu   sync.Mutex
	name string // empty: the device has no such counter
	base uint64
	last uint64
	at   time.Time
}

// rnrNames are counters of receivers that were not ready: of rxe
// (drivers/infiniband/sw/rxe/rxe_hw_counters.c), and of mlx5 and its kin.
var rnrNames = []string{"send_rnr_err", "out_of_buffer"}

// rnrFresh is for how long a value is good: the kernel does not renew it more often.
const rnrFresh = 10 * time.Millisecond

func (r *rnrCounter) begin(device string, port int) {
	r.device, r.port = device, port
	for _, name := range rnrNames {
		if v, err := verbs.PortCounter(device, port, name); err == nil {
			r.name, r.base, r.last = name, v, v
			return
		}
	}
}

// read returns the count since begin.
func (r *rnrCounter) read() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.name == "" {
		return 0
	}
	if now := time.Now(); now.Sub(r.at) >= rnrFresh {
		r.at = now
		if v, err := verbs.PortCounter(r.device, r.port, r.name); err == nil {
			r.last = v
		}
	}
	return r.last - r.base
}
