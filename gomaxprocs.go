package conduit

import (
	"os"
	"runtime"
	"strconv"
)

// raiseProcs has the runtime run two goroutines at once where it would run one: the work of
// attendants of messages while the program computes would else wait until the runtime preempts it,
// for 10 ms and more (forcePreemptNS of runtime/proc.go). The kernel shares one processor in
// shorter slices.
func (j *joining) raiseProcs() {
	set, err := strconv.ParseInt(os.Getenv("GOMAXPROCS"), 10, 32) // as the runtime reads it
	if j.size == 1 || j.cfg.KeepGOMAXPROCS || err == nil && set > 0 || runtime.GOMAXPROCS(0) > 1 {
		return
	}
	runtime.GOMAXPROCS(2)
	j.cfg.Logger.Info("GOMAXPROCS is 2 where it was 1: messages are served while the program computes", "keep",
		"IBCONDUIT_KEEP_GOMAXPROCS=1")
}
