package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ibconduit/conduit"
)

// The variables that ServeEnv reads.
const (
	addrVar  = "IBCONDUIT_METRICS"
	dirVar   = "IBCONDUIT_METRICS_DIR"
	pprofVar = "IBCONDUIT_METRICS_PPROF"
)

// Server is what ServeEnv started. A nil one is valid: nothing was to be served.
type Server struct {
	addr *net.TCPAddr
	file *announcement
	end  context.CancelFunc
	done chan struct{}
	err  error // of serving, once done

	close    sync.Once
	closeErr error
}

// ServeEnv serves metrics as the environment says, until Close: by default the job's, else
// the metrics of cs, of which one may be the job's Collector.
//
// IBCONDUIT_METRICS is a port, to which the rank's place on its host is added, so that
// each rank has its own; or host:port, without which it is a loopback address that other hosts do
// not reach. With port 0 each rank has any that is free. Without the variable nothing is served,
// and the Server is nil.
//
// With IBCONDUIT_METRICS_DIR the address is written to a file of that directory as Prometheus finds
// targets by (file_sd_configs), and a rank takes another port if its own is taken. Close removes
// it; the next rank that begins removes a killed rank's.
//
// With IBCONDUIT_METRICS_PPROF=1, on loopback only, /debug/pprof/ has the profiles of package
// runtime/pprof beside /metrics, and profile, of the processor.
func ServeEnv(job *conduit.Job, cs ...prometheus.Collector) (*Server, error) {
	return serveEnv(os.Getenv, job, cs)
}

func serveEnv(getenv func(string) string, job *conduit.Job, cs []prometheus.Collector) (*Server, error) {
	at := getenv(addrVar)
	if at == "" {
		return nil, nil
	}
	profiles := getenv(pprofVar)
	if profiles != "" && profiles != "0" && profiles != "1" {
		return nil, fmt.Errorf("metrics: %s is %s, want 0 or 1", pprofVar, profiles)
	}
	l, err := listenEnv(at, job.Info().LocalRank, getenv(dirVar) != "")
	if err != nil {
		return nil, err
	}
	s := &Server{addr: l.Addr().(*net.TCPAddr), done: make(chan struct{})}
	if len(cs) == 0 {
		cs = []prometheus.Collector{NewCollector(job)}
	}
	h, err := Handler(cs...)
	if profiles == "1" && !s.addr.IP.IsLoopback() {
		err = errors.Join(err,
			fmt.Errorf("metrics: %s=1, and %s=%s is no loopback address: "+
				"who reads profiles reads what a program holds, and slows it down", pprofVar, addrVar, at))
	}
	if dir := getenv(dirVar); dir != "" && err == nil {
		s.file, err = announce(dir, s.addr)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	if profiles == "1" {
		mux.HandleFunc("GET /debug/pprof/{name}", profile)
	}
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	go func() {
		defer close(s.done)
		s.err = serve(ctx, l, mux)
	}()
	return s, nil
}

// listenEnv listens at a port that is the rank's own.
func listenEnv(at string, localRank int, orAny bool) (net.Listener, error) {
	host, port := "127.0.0.1", at
	if h, p, err := net.SplitHostPort(at); err == nil {
		if port = p; h != "" {
			host = h
		}
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 0 || n > 65535 {
		return nil, fmt.Errorf("metrics: %s is %s, want a port, or host:port, from 0 to 65535", addrVar, at)
	}
	if n > 0 {
		if n += max(localRank, 0); n > 65535 {
			return nil, fmt.Errorf("metrics: %s=%s: rank %d of this host would have port %d: begin lower",
				addrVar, at, localRank, n)
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(n)))
	if orAny && errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("metrics: %s=%s: %w; port 0, or %s, has each rank take one that is free",
			addrVar, at, err, dirVar)
	} else if err != nil {
		return nil, fmt.Errorf("metrics: %s=%s: %w", addrVar, at, err)
	}
	return l, nil
}

// Addr is where it listens, nil where nothing is served.
func (s *Server) Addr() net.Addr {
	if s == nil {
		return nil
	}
	return s.addr
}

// Close ends serving, once scrapes in progress are done, for which it waits 2 s at most.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.close.Do(func() {
		s.closeErr = s.file.remove()
		s.end()
		<-s.done
		s.closeErr = errors.Join(s.closeErr, s.err)
	})
	return s.closeErr
}
