package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/internal/errtext"
)

// serverPort is the one after perftest's.
const serverPort = "18516"

// Times until both processes have connected.
const (
	dialTime  = 20 * time.Second
	busyTime  = 5 * time.Second      // in which a server notices that its client has ended
	serveTime = 365 * 24 * time.Hour // that a server waits for the next client
)

// serveCmd is ibbench serve.
type serveCmd struct {
	place
	Port   int    `default:"18516" placeholder:"N" help:"TCP port to listen on. Default: 18516."`
	Listen string `default:"0.0.0.0" placeholder:"A" help:"Address or interface to listen on. Default: 0.0.0.0, all of IPv4."`
	Once   bool   `help:"End after one measurement, with its exit code."`
}

// target is the argument of measurements between this host and one that serves.
type target struct {
	Host string `arg:"" optional:"" help:"A host where ibbench serve runs, as node2 or node2:18516. Default: ranks of a launcher, or on this machine."`
}

// between sorts operation and host: either may be left out.
func (t *target) between(op *string, ops ...string) error {
	if slices.Contains(ops, *op) {
		return nil
	}
	host, _ := hostPort(*op)
	if _, err := net.LookupHost(host); t.Host != "" || err != nil {
		return fmt.Errorf("%q: want one of %s, or a host where ibbench serve runs", *op, strings.Join(ops, ", "))
	}
	t.Host, *op = *op, plan.Put
	return nil
}

// hostPort splits HOST, HOST:PORT, and addresses of IPv6 with and without brackets.
func hostPort(s string) (host, port string) {
	if h, p, err := net.SplitHostPort(s); err == nil && h != "" {
		return h, p
	}
	return strings.Trim(s, "[]"), serverPort
}

// secrets are the variables that say which processes may join.
var secrets = []string{"IBCONDUIT_SECRET", "IBCONDUIT_SECRET_FILE", "IBCONDUIT_INSECURE"}

// meet joins the two processes. The server listens, so it is rank 0 of bootstrap; the client leads
// the measurement, so the ranks are exchanged.
func meet(ctx context.Context, rank int, timeout time.Duration, vars map[string]string) (bootstrap.Bootstrap, error) {
	vars["IBCONDUIT_RANK"], vars["IBCONDUIT_SIZE"] = strconv.Itoa(1-rank), "2"
	lookup := func(name string) (string, bool) {
		if v, ok := vars[name]; ok || !slices.Contains(secrets, name) {
			return v, ok
		}
		return os.LookupEnv(name)
	}
	b, err := bootstrap.New(ctx, bootstrap.Options{Lookup: lookup, Timeout: timeout, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	s := &swapped{b, make(chan bootstrap.Loss, b.Size())}
	go func() {
		defer close(s.lost)
		for l := range b.Lost() {
			l.Rank = 1 - l.Rank
			s.lost <- l
		}
	}()
	return s, nil
}

// swapped is a job of two whose ranks are exchanged.
type swapped struct {
	bootstrap.Bootstrap
	lost chan bootstrap.Loss
}

func (s *swapped) Rank() int                   { return 1 - s.Bootstrap.Rank() }
func (s *swapped) Name() string                { return "ibbench serve" }
func (s *swapped) Lost() <-chan bootstrap.Loss { return s.lost }

func (s *swapped) Local() (rank, size int, ok bool) {
	rank, size, ok = s.Bootstrap.Local()
	if ok && size == 2 {
		rank = 1 - rank
	}
	return rank, size, ok
}

func (s *swapped) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	all, err := s.Bootstrap.Exchange(ctx, blob)
	slices.Reverse(all)
	return all, err
}

func (c *serveCmd) run(ctx context.Context, io streams) error {
	cpus, err := plan.CPUs(c.CPU)
	if err != nil {
		return usageError{fmt.Errorf("--cpu: %w", err)}
	}
	if c.Port < 1 || c.Port > 65535 {
		return usageError{fmt.Errorf("--port %d: want 1 to 65535", c.Port)}
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	port := strconv.Itoa(c.Port)
	if port != serverPort {
		name += ":" + port
	}
	vars := map[string]string{"IBCONDUIT_ADDR": net.JoinHostPort("localhost", port),
		"IBCONDUIT_LISTEN": net.JoinHostPort(c.Listen, port)}
	name = "ibbench lat " + name
	if slices.ContainsFunc(secrets, func(v string) bool { return os.Getenv(v) != "" }) {
		name += ", with the same secret"
	} else {
		vars[secrets[0]] = rand.Text()
		name = secrets[0] + "=" + vars[secrets[0]] + " " + name
	}
	t := newTerminal(io.err, c.Quiet)
	t.line("waiting on port %s; on the other host: %s", port, name)
	for {
		boot, err := meet(ctx, 1, serveTime, vars)
		if err != nil {
			return err
		}
		err = c.serve(ctx, boot, cpus, t)
		switch {
		case c.Once || ctx.Err() != nil:
			return err
		case err != nil:
			t.line("%v", err)
		}
	}
}

// serve takes part in one client's measurement.
func (c *serveCmd) serve(ctx context.Context, boot bootstrap.Bootstrap, cpus []int, t *terminal) error {
	blobs, err := boot.Exchange(ctx, nil)
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	p, err := plan.Decode(string(blobs[0]))
	if err != nil {
		return errors.Join(err, boot.Fail(err))
	}
	p.Device, p.GID, p.CPUs = c.Device, c.GID, cpus
	t.line("a client measures %s", errtext.Count(len(p.Points), "point"))
	return measure.Rank(ctx, boot, p, measure.Events{})
}

// ask measures between this process and one that serves.
func ask(ctx context.Context, host string, p *plan.Plan, events measure.Events) error {
	addr := net.JoinHostPort(hostPort(host))
	events.Progress("connecting to ibbench serve at " + addr)
	var boot bootstrap.Bootstrap
	var err error
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		boot, err = meet(ctx, 0, dialTime, map[string]string{"IBCONDUIT_ADDR": addr})
		var refused *bootstrap.JoinError
		if !errors.As(err, &refused) || refused.Reason != bootstrap.ReasonStarted {
			break
		}
		err = fmt.Errorf("it measures for another client: %w", err)
		if time.Since(began) > busyTime || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("ibbench serve at %s, which takes one client at a time: %w", addr, err)
	}
	if _, err := boot.Exchange(ctx, []byte(p.Encode())); err != nil {
		return errors.Join(err, boot.Close())
	}
	return quietly(measure.Rank(ctx, boot, p, events))
}
