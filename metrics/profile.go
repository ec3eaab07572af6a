package metrics

import (
	"context"
	"errors"
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/ibconduit/conduit"
)

// Phase calls f with the labels rank and phase, by which profiles of processor and goroutines
// keep apart the ranks of one process, and the phases of one rank: `go
// tool pprof -tagfocus phase=halo`. Goroutines that f starts have them too. f gets ctx with them.
func Phase(ctx context.Context, job *conduit.Job, phase string, f func(ctx context.Context)) {
	pprof.Do(ctx, pprof.Labels("rank", strconv.Itoa(job.Rank()), "phase", phase), f)
}

// Seconds of a profile of the processor.
const (
	defaultProfile = 30
	maxProfile     = 600
)

// profile answers as net/http/pprof does, which cannot be imported: it would add handlers to every
// program that serves http.DefaultServeMux.
func profile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if name == "profile" {
		profileProcessor(w, r)
		return
	}
	p := pprof.Lookup(name)
	if p == nil {
		http.Error(w, "no profile "+strconv.Quote(name), http.StatusNotFound)
		return
	}
	debug, _ := strconv.Atoi(r.FormValue("debug"))
	if debug == 0 {
		w.Header().Set("Content-Type", "application/octet-stream")
	} else {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	_ = p.WriteTo(w, debug) // fails if the reader has gone
}

func profileProcessor(w http.ResponseWriter, r *http.Request) {
	seconds := defaultProfile
	if s := r.FormValue("seconds"); s != "" {
		var err error
		if seconds, err = strconv.Atoi(s); err != nil || seconds < 1 || seconds > maxProfile {
			http.Error(w, "seconds: want 1 to 600", http.StatusBadRequest)
			return
		}
	}
	took := time.Duration(seconds) * time.Second
	// A reading deadline that passes ends a request, too.
	deadline, c := time.Now().Add(took+writeTimeout), http.NewResponseController(w)
	if err := errors.Join(c.SetReadDeadline(deadline), c.SetWriteDeadline(deadline)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := pprof.StartCPUProfile(w); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	select {
	case <-time.After(took):
	case <-r.Context().Done():
	}
	pprof.StopCPUProfile()
}
