package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A scrape is small. A client that takes longer than this holds a connection for
// nothing, by mistake or on purpose.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	endTimeout    = 2 * time.Second // for scrapes in progress when Serve ends
	maxHeader     = 16 << 10        // bytes
	maxScrapes    = 4               // at a time
)

// Handler answers scrapes with the metrics of the collectors. The Go
// runtime's are not among them unless collectors.NewGoCollector is. A scrape in
// which one metric cannot be had shows the others.
func Handler(cs ...prometheus.Collector) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	for _, c := range cs {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	}), nil
}

// Serve answers scrapes of http://addr/metrics until ctx ends, and then
// returns nil once the scrapes in progress are done. addr is host:port as for
// net.Listen. All that reach it can read it.
func Serve(ctx context.Context, addr string, cs ...prometheus.Collector) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return ServeListener(ctx, l, cs...)
}

// ServeListener is Serve on a listener, which it closes.
func ServeListener(ctx context.Context, l net.Listener, cs ...prometheus.Collector) error {
	h, err := Handler(cs...)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	return serve(ctx, l, mux)
}

func serve(ctx context.Context, l net.Listener, mux *http.ServeMux) error {
	srv := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("metrics: serving on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	err := srv.Shutdown(end)
	if err != nil {
		err = fmt.Errorf("metrics: a scrape was cut off at the end: %w", errors.Join(err, srv.Close()))
	}
	<-served
	return err
}
