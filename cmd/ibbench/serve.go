package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
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

// defaultPort is where ibbench serve listens: the one after perftest's.
const defaultPort = 18516

// Times of meeting.
const (
	dialTime  = 20 * time.Second
	busyTime  = 5 * time.Second      // in which a server finds out that its client has gone
	foreverIs = 365 * 24 * time.Hour // that a server waits for the next client
)

// serveCmd is ibbench serve.
type serveCmd struct {
	Port   int    `default:"18516" placeholder:"N" help:"TCP port to listen on. Default: 18516."`
	Listen string `default:"0.0.0.0" placeholder:"A" help:"Address or interface to listen on. Default: 0.0.0.0, all of IPv4."`
	Device string `short:"d" placeholder:"DEV" help:"Verbs device of this side. Default: the best with an active port."`
	GID    string `name:"gid" default:"auto" placeholder:"N|auto" help:"GID table index of this side. Default: auto, RoCEv2 over IPv4 first."`
	CPU    string `placeholder:"LIST" help:"Processors for this side, as 0,2 or 0-3."`
	Once   bool   `help:"End after one measurement, with its exit code."`
	Quiet  bool   `short:"q" help:"Say nothing."`
}

// target is the argument of measurements between this host and one that serves.
type target struct {
	Host string `arg:"" optional:"" help:"A host where ibbench serve runs, as node2 or node2:18516. Default: ranks of a launcher, or on this machine."`
}

// between tells the operation from the host: either may be left out.
func (t *target) between(op *string, byDefault string, ops ...string) error {
	switch {
	case slices.Contains(ops, *op):
		return nil
	case t.Host != "" || !isHost(*op):
		return fmt.Errorf("%q: want one of %s, or a host where ibbench serve runs", *op, strings.Join(ops, ", "))
	}
	t.Host, *op = *op, byDefault
	return nil
}

// isHost reports whether an argument may be a host: an operation that was mistyped is none.
func isHost(s string) bool {
	host, _ := hostPort(s)
	if net.ParseIP(host) != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(ctx, host)
	return err == nil
}

// hostPort splits HOST, HOST:PORT, and addresses of IPv6 with and without brackets.
func hostPort(s string) (host, port string) {
	if h, p, err := net.SplitHostPort(s); err == nil && h != "" {
		return h, p
	}
	return strings.Trim(s, "[]"), strconv.Itoa(defaultPort)
}

// meet joins the two processes; rank 0 listens.
func meet(ctx context.Context, rank int, addr, listen, secret string, timeout time.Duration) (bootstrap.Bootstrap, error) {
	vars := map[string]string{"IBCONDUIT_RANK": strconv.Itoa(rank), "IBCONDUIT_SIZE": "2", "IBCONDUIT_ADDR": addr}
	if listen != "" {
		vars["IBCONDUIT_LISTEN"] = listen
	}
	for _, name := range secrets {
		if v, ok := os.LookupEnv(name); ok {
			vars[name] = v
		}
	}
	if secret != "" {
		vars["IBCONDUIT_SECRET"] = secret
	}
	lookup := func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
	return bootstrap.New(ctx, bootstrap.Options{Lookup: lookup, Timeout: timeout, Log: slog.New(slog.DiscardHandler)})
}

// secrets are the variables that say who may join.
var secrets = []string{"IBCONDUIT_SECRET", "IBCONDUIT_SECRET_FILE", "IBCONDUIT_INSECURE"}

// busy reports whether the server has another client, or had one a moment ago.
func busy(err error) bool {
	var refused *bootstrap.JoinError
	return errors.As(err, &refused) && refused.Reason == bootstrap.ReasonStarted
}

// swapped has the ranks the other way round: who asks for a measurement leads it, though it is the
// other one that listens.
type swapped struct {
	bootstrap.Bootstrap
	lost chan bootstrap.Loss
}

func swap(b bootstrap.Bootstrap) bootstrap.Bootstrap {
	s := &swapped{b, make(chan bootstrap.Loss, b.Size())}
	go func() {
		defer close(s.lost)
		for l := range b.Lost() {
			l.Rank = 1 - l.Rank
			s.lost <- l
		}
	}()
	return s
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

// order is what the client tells the server.
type order struct {
	Plan string `json:"plan"`
	Host string `json:"host"`
}

func (c *serveCmd) run(ctx context.Context, io streams) error {
	cpus, err := plan.CPUs(c.CPU)
	if err != nil {
		return usageError{fmt.Errorf("--cpu: %w", err)}
	}
	if c.Port < 1 || c.Port > 65535 {
		return usageError{fmt.Errorf("--port %d: want 1 to 65535", c.Port)}
	}
	addr, at := net.JoinHostPort("localhost", strconv.Itoa(c.Port)), net.JoinHostPort(c.Listen, strconv.Itoa(c.Port))
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	if c.Port != defaultPort {
		name += fmt.Sprintf(":%d", c.Port)
	}
	secret := ""
	if !slices.ContainsFunc(secrets, func(v string) bool { return os.Getenv(v) != "" }) {
		b := make([]byte, 16)
		_, _ = rand.Read(b) // never fails
		secret = hex.EncodeToString(b)
		name = "IBCONDUIT_SECRET=" + secret + " ibbench lat " + name
	} else {
		name = "ibbench lat " + name + ", with the same secret"
	}
	t := newTerminal(io.err, c.Quiet)
	defer t.end()
	t.line("waiting on port %d; on the other host: %s", c.Port, name)
	for {
		boot, err := meet(ctx, 0, addr, at, secret, foreverIs)
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

// serve takes part in what one client asks for.
func (c *serveCmd) serve(ctx context.Context, boot bootstrap.Bootstrap, cpus []int, t *terminal) error {
	boot = swap(boot)
	blobs, err := boot.Exchange(ctx, nil)
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	var o order
	if err := json.Unmarshal(blobs[0], &o); err != nil {
		return errors.Join(fmt.Errorf("what the client asks for: %w", err), boot.Close())
	}
	p, err := plan.Decode(o.Plan)
	if err != nil {
		return errors.Join(err, boot.Fail(err))
	}
	p.Device, p.GID, p.CPUs = c.Device, c.GID, cpus
	t.line("%s measures %s", o.Host, errtext.Count(len(p.Points), "point"))
	return measure.Rank(ctx, boot, p, measure.Events{})
}

// ask measures between this process and one that serves.
func (c *common) ask(ctx context.Context, host string, p *plan.Plan, fabrics []string, events measure.Events) error {
	if len(fabrics) > 1 {
		return usageError{fmt.Errorf("with a host one fabric is measured at a time, not %v", fabrics)}
	}
	p.Fabric, p.Ranks = fabrics[0], 2
	if err := p.Validate(); err != nil {
		return usageError{err}
	}
	h, port := hostPort(host)
	addr := net.JoinHostPort(h, port)
	events.Progress("meeting ibbench serve at " + addr)
	boot, err := meet(ctx, 1, addr, "", "", dialTime)
	for began := time.Now(); busy(err) && time.Since(began) < busyTime && ctx.Err() == nil; {
		time.Sleep(100 * time.Millisecond)
		boot, err = meet(ctx, 1, addr, "", "", dialTime)
	}
	if busy(err) {
		err = fmt.Errorf("it measures for another client: %w", err)
	}
	if err != nil {
		return fmt.Errorf("ibbench serve at %s, which takes one client at a time: %w", addr, err)
	}
	boot = swap(boot)
	name, err := os.Hostname()
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	b, err := json.Marshal(order{Plan: p.Encode(), Host: name})
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	if _, err := boot.Exchange(ctx, b); err != nil {
		return errors.Join(err, boot.Close())
	}
	return quietly(measure.Rank(ctx, boot, p, events))
}
