package launch

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// rank is one rank of the job, on whatever host.
type rank struct {
	number int
	process
	order int64 // in which ranks were seen to end, from 1
	ended bool  // run.see has received its end, as of dry
	dry   bool  // all output has been taken
}

// process is what a starter has made of a rank: a process of this host, or of another one.
type process interface {
	// signal reaches the process, and what it has started.
	signal(s syscall.Signal)
	// grouped: the rank is in our own process group; shares then waits for whether a signal that
	// this process has received was for the whole group.
	grouped() bool
	shares(s syscall.Signal) bool
	// place in the order in which the ranks began to end, from 1; ok is false when none is known.
	place() (n int, ok bool)
	// where it runs, as "pid 7".
	where() string
	// code, as a shell has it, and how it ended, as "exit status 3", of one that has ended.
	code() int
	how() string
}

func (k *rank) String() string { return fmt.Sprintf("rank %d (%s): %s", k.number, k.where(), k.how()) }

// starter starts the ranks of a job: as processes of this host (local), or by agents on others
// (hosts).
type starter interface {
	// start starts all ranks. It sends the end of each, and then of its output, to run.events. Ranks
	// may run also where it returns an error.
	start(ctx context.Context) ([]*rank, error)
	// announce informs all ranks that one has ended, by the lists of package bootstrap.
	announce(k *rank)
	// pause and resume come before this process stops, and after it goes on.
	pause()
	resume()
	// abandon ends the wait for ranks that SIGKILL has not ended: for ranks of hosts that do not
	// answer.
	abandon()
	close()
}

// event is the end of a rank or, after that, of its output.
type event struct {
	rank *rank
	dry  bool
}

// stopped is a timer that does not run.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
