package conduit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/handle"
)

func handlerTable(names ...string) *am.Table {
	t := am.NewTable()
	for _, n := range names {
		t.Handle(n, func(*am.Call) {})
	}
	return t
}

func TestRanksWithOtherHandlersDoNotJoin(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		with := func(names ...string) Config { c := cfg; c.Handlers = handlerTable(names...); return c }
		for r, err := range failToJoin(t, with("alloc", "free"), with("alloc", "free"), with("alloc", "frei"), with("alloc", "free")) {
			want := `handler 1 is "free" here and "frei" on rank 2`
			if r == 2 {
				want = `handler 1 is "frei" here and "free" on rank 0`
			}
			var te *am.TableError
			if !errors.As(err, &te) || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %s", r, err, want)
			}
		}
		for r, err := range failToJoin(t, with("a"), with(), with("a")) {
			if want := "rank 1 has 0 handlers of active messages, rank 0 has 1"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %s", r, err, want)
			}
		}
	})
}

func TestRanksWithOtherParametersDoNotJoin(t *testing.T) {
	base := Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Handlers: handlerTable("h"), MessageEndpoints: 2, Workers: 2}
	for want, change := range map[string]func(*Config){
		"rank 1 was configured with 3 workers, rank 0 with 2: they must be equal (Config.Workers, IBCONDUIT_WORKERS; the default follows GOMAXPROCS":                              func(c *Config) { c.Workers = 3 },
		"rank 1 was configured with 3 message endpoints, rank 0 with 2: they must be equal (Config.MessageEndpoints, IBCONDUIT_MESSAGE_ENDPOINTS; the default follows GOMAXPROCS": func(c *Config) { c.MessageEndpoints = 3 },
		"rank 1 was configured with Messages.Credits 17, rank 0 with 256":                                                                                                         func(c *Config) { c.Messages.Credits = 17 },
		"rank 1 was configured with Messages.MaxMedium 8192, rank 0 with 4096":                                                                                                    func(c *Config) { c.Messages.MaxMedium = 8192 },
		"rank 1 was configured with Messages.Flow.Window 5, rank 0 with 64":                                                                                                       func(c *Config) { c.Messages.Flow.Window = 5 },
		"rank 1 was configured with Messages.Flow.Initial 0, rank 0 with 2":                                                                                                       func(c *Config) { c.Messages.Flow.Initial = -1 },
		"rank 1 was configured with Messages.Flow.Retry (ns) 2000000, rank 0 with 4000000":                                                                                        func(c *Config) { c.Messages.Flow.Retry = 2 * time.Millisecond },
	} {
		odd := base
		change(&odd)
		for r, err := range failToJoin(t, base, odd, base) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %s", r, err, want)
			}
		}
	}
}

func TestParametersThatCannotWorkAreRefused(t *testing.T) {
	for want, c := range map[string]Config{
		"MaxMedium 7":            {Messages: am.Config{MaxMedium: 7}, Handlers: handlerTable("h"), Fabric: FabricSHM, SegmentSize: 1 << 16},
		"a window of -1 credits": {Messages: am.Config{Flow: flow.Config{Window: -1}}, Handlers: handlerTable("h"), Fabric: FabricSHM, SegmentSize: 1 << 16},
	} {
		c.Getenv = noEnv
		if j, err := Join(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
			if err == nil {
				_ = j.Close()
			}
		}
	}
}

// messageHandles are the objects that only messages need.
func messageHandles() (n int) {
	for _, r := range handle.Live() {
		if strings.Contains(r.Kind, "port") || strings.Contains(r.Kind, "endpoint") || r.Kind == "SRQ" || r.Kind == "AH" {
			n++
		}
	}
	return n
}

func TestWithoutHandlersThereIsNothingForMessages(t *testing.T) {
	h := handlerTable("h")
	everyFabric(t, func(t *testing.T, cfg Config) {
		for _, table := range []*am.Table{am.NewTable(), h} {
			cfg.Handlers = table
			runLocal(t, 1, cfg, func(ctx context.Context, j *Job) error {
				with := table == h
				if got := messageHandles() > 0; got != with {
					return fmt.Errorf("with handlers: %v, there are endpoints: %v", with, got)
				}
				if m := j.networks.all[0].(fabric.Messenger); !with && cfg.Fabric == FabricIBV && m.MessageLimits().Endpoints != 0 {
					return fmt.Errorf("the device has %d endpoints", m.MessageLimits().Endpoints)
				}
				if n := len(j.MessageStats()); n > 0 != with {
					return fmt.Errorf("with handlers: %v, there are counters of %d networks", with, n)
				}
				if with {
					return nil
				}
				if j.Endpoint(0) != nil {
					return errors.New("there is an endpoint")
				}
				return withWorker(j, func(w *Worker) error {
					stranger := handlerTable()
					x := stranger.Handle("x", func(*am.Call) {})
					return errors.Join(wantErr(x.Post(ctx, w, 0), am.ErrNoEndpoint, "Config.Handlers"), wantErr(x.Post(ctx, j, 0), am.ErrNoEndpoint, "Config.Handlers"))
				})
			})
		}
	})
}
