package conduit

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/bootstrap"
)

// meet finds the other ranks. Where they are not found a variable that is misspelt may be why.
func (j *joining) meet(ctx context.Context) (err error) {
	if j.boot = j.cfg.Bootstrap; j.boot == nil {
		j.boot, err = bootstrap.New(ctx, bootstrap.Options{Lookup: j.cfg.Getenv, Timeout: j.cfg.JoinTimeout, Log: j.cfg.Logger})
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
	MESSAGE_ENDPOINTS KEEPALIVE EAGER_PEERS MAX_CONNECTIONS CONNECT_ALL LATENCY CACHE CACHE_CHECK JOIN_TIMEOUT LOG
	BOOTSTRAP LIBPMIX RANK SIZE ADDR JOB SECRET_FD SECRET_FILE SECRET LISTEN_FD LISTEN SOCKET SOCKET_FD LIFE_FD ENDED_FD
	PROGRAMS SSH INSECURE METRICS METRICS_DIR METRICS_PPROF LIBIBVERBS VERBS_DISABLE MEM_EVENTS MEM_MONITORS
	MEMEVENTS_LIB MEM_LOG_LEVEL REGCACHE`)

// tellMisspelt names the variables of an environment that are almost ones that are known: they
// change nothing, and nobody else would say so. Others may be the site's own.
func tellMisspelt(w io.Writer, environ []string) {
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		rest, ours := strings.CutPrefix(name, ownPrefix)
		if !ours || slices.Contains(ownVariables, rest) {
			continue
		}
		if k := slices.MinFunc(ownVariables, func(a, b string) int { return edits(a, rest) - edits(b, rest) }); edits(k, rest) <= len(k)/4 {
			fmt.Fprintf(w, "conduit: %s is set and means nothing: is it %s%s?\n", name, ownPrefix, k)
		}
	}
}

// edits is how many letters are to be put in, left out, replaced or exchanged with their neighbour.
// Case and underscores do not count: one edit for all.
func edits(a, b string) int {
	if plain := strings.NewReplacer("_", ""); strings.EqualFold(plain.Replace(a), plain.Replace(b)) {
		return 1
	}
	var older []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			next[j] = min(last[j], next[j-1]) + 1
			if a[i-1] == b[j-1] {
				next[j] = min(next[j], last[j-1])
			} else {
				next[j] = min(next[j], last[j-1]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], older[j-2]+1)
			}
		}
		older, last = last, next
	}
	return last[len(b)]
}
