package launch

import (
	"strings"
	"time"
	"unicode"

	"github.com/ibconduit/conduit/internal/mux"
)

// Kinds of the frames between ibrun and an agent.
const (
	kindSpec    = mux.First + iota // to the agent: what to start, gob
	kindSignal                     // to the agent: id is the rank, body the signal u8
	kindEnded                      // id is the rank; to the agent: how, text; from it: code u8, how
	kindPause                      // to the agent: nothing will be heard until resume
	kindResume                     //
	kindBye                        // to the agent: the job is over
	kindStarted                    // id is the rank; body pid u32
	kindRunning                    // all ranks of the agent have been started
	kindFailed                     // not all: exit code u8, text
	kindDying                      // id is the rank, which begins to end
	kindReport                     // text for the user
)

// textOf is what comes behind some bytes of a frame, fit for a line of a terminal.
func textOf(f mux.Frame, from int) string { return printable(f.Body[min(from, len(f.Body)):]) }

func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, string(b))
}

func firstOf(f mux.Frame) (n int) {
	if len(f.Body) > 0 {
		n = int(f.Body[0])
	}
	return n
}

// agentBanner is the first line of an agent; what a shell says before it is passed over. The number
// is the protocol's.
const agentBanner = "ibrun-agent 2"

// spec is what an agent is to start.
type spec struct {
	Job, Secret    string
	Numbers        []int // of its ranks
	Programs       []Program
	Env            []string   // added to the agent's own
	RankEnv        [][]string // by place in Numbers
	Dir            string
	Bind           string
	Placement      bool
	Stdin          bool // for rank 0
	Grace, Silence time.Duration
}

// Numbers of the streams that both sides know; relays' numbers come behind.
const (
	stdinStream = 0
	firstRelay  = 1 << 28
)

// outputStream of a rank: fd is 1 or 2.
func outputStream(rank, fd int) uint32 { return uint32(2*rank + fd) }
