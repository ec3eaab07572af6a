package conduit

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/nearest"
)

// meet finds the other ranks. Where they are not found a variable that is misspelt may be why.
func (j *joining) meet(ctx context.Context) (err error) {
	if j.boot = j.cfg.Bootstrap; j.boot == nil {
		j.boot, err = bootstrap.New(ctx, bootstrap.Options{Lookup: j.cfg.Getenv, Timeout: j.cfg.JoinTimeout,
			Log: j.cfg.Logger})
	}
	if err != nil || j.boot.Rank() == 0 {
		tellMisspelt(os.Stderr, os.Environ())
	}
	return err
}

const ownPrefix = "IBCONDUIT_"

// ownVariables are the variables that programs and ibrun read, without their common beginning.
var ownVariables = strings.Fields(`
	SEGMENT_SIZE HEAP_SIZE SYMMETRIC_SIZE BUDGET RECEIVE_SIZE FABRIC DEVICE PORT GID WORKERS QUEUE_DEPTH ZEROCOPY_MIN
	MESSAGE_ENDPOINTS KEEP_GOMAXPROCS KEEPALIVE EAGER_PEERS MAX_CONNECTIONS CONNECT_ALL LATENCY CACHE CACHE_CHECK JOIN_TIMEOUT LOG
	BOOTSTRAP LIBPMIX RANK SIZE ADDR JOB SECRET_FD SECRET_FILE SECRET LISTEN_FD LISTEN SOCKET SOCKET_FD LIFE_FD ENDED_FD
	PROGRAMS SSH INSECURE METRICS METRICS_DIR METRICS_PPROF LIBIBVERBS VERBS_DISABLE MEM_EVENTS MEM_MONITORS
	MEMEVENTS_LIB MEM_LOG_LEVEL REGCACHE`)

// tellMisspelt names the variables of an environment that are almost ones that are known.
func tellMisspelt(w io.Writer, environ []string) {
	for _, text := range nearest.Misspelt(environ, ownPrefix, ownVariables) {
		fmt.Fprintf(w, "conduit: %s\n", text)
	}
}
