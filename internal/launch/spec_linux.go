package launch

import "time"

// agentBanner is the first line of an agent; what a shell says before it is passed over. The number
// is the protocol's.
const agentBanner = "ibrun-agent 1"

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
