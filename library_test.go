package conduit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ibconduit/conduit/am"
)

// libraryPart is a part of the library with one handler, in a table for each rank.
type libraryPart struct {
	name string
	f    am.Func
	by   sync.Map // *am.Table: *am.Handler
}

func (p *libraryPart) register(t *am.Table) { p.by.Store(t, t.Handle(p.name, p.f)) }

func (p *libraryPart) of(j *Job) *am.Handler {
	h, _ := p.by.Load(j.library.table)
	return h.(*am.Handler)
}

func twice(c *am.Call) { _ = c.Reply(2 * c.Arg(0)) }

func TestTheLibraryHasEndpointsOfItsOwn(t *testing.T) {
	for _, user := range []*am.Table{am.NewTable(), handlerTable("h")} {
		part := &libraryPart{name: "conduit.twice", f: twice}
		onFabrics(t, 2, withNeeds(Config{Handlers: user, MessageEndpoints: 2}, needs{handlers: part.register}), func(ctx context.Context, j *Job) error {
			r, err := part.of(j).Call(ctx, j.services(), 1-j.Rank(), 21)
			if err != nil || r.Arg(0) != 42 {
				return fmt.Errorf("reply %v: %w", r.Args(), err)
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			network := j.networks.all[0].Name()
			library, program := j.LibraryStats()[network], j.MessageStats()[network]
			if library.Calls != 1 || library.Requests != 1 || program.Requests != 0 {
				return fmt.Errorf("%d calls and %d requests of the library are counted, %d of the program", library.Calls, library.Requests, program.Requests)
			}
			if has := j.Endpoint(0) != nil; has != (user.Len() > 0) {
				return fmt.Errorf("with %d handlers of the program it has an endpoint: %v", user.Len(), has)
			}
			return nil
		})
	}
}

func TestTheLibraryHasNoAccessToUserHandlers(t *testing.T) {
	part, user := &libraryPart{name: "conduit.twice", f: twice}, handlerTable()
	h := user.Handle("h", func(*am.Call) {})
	runLocal(t, 1, withNeeds(Config{Fabric: FabricSHM, Handlers: user}, needs{handlers: part.register}), func(ctx context.Context, j *Job) error {
		return errors.Join(wantText(h.Post(ctx, j.services(), 0), "of another table"), wantText(part.of(j).Post(ctx, j, 0), "of another table"))
	})
}

func wantText(err error, text string) error {
	if err == nil || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("%v, want %q", err, text)
	}
	return nil
}

func TestAJobWithoutPartsHasNoLibraryEndpoints(t *testing.T) {
	runLocal(t, 1, Config{Fabric: FabricSHM, Handlers: handlerTable("h")}, func(_ context.Context, j *Job) error {
		if n := len(j.library.all) + len(j.LibraryStats()); j.services() != nil || n > 0 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}

func TestTheProgramGetsNoneOfTheLibrarysNames(t *testing.T) {
	for name, table := range map[string]*am.Table{"conduit.mine": am.NewTable(), "mine": am.NewLibraryTable()} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, `begin with "conduit."`) && !strings.Contains(text, `begins with "conduit."`) {
					t.Errorf("Handle(%q): %s", name, text)
				}
			}()
			table.Handle(name, func(*am.Call) {})
			t.Errorf("%q was registered", name)
		}()
	}
	_, err := Join(t.Context(), Config{Fabric: FabricSHM, Getenv: noEnv, Handlers: am.NewLibraryTable()})
	if err := wantText(err, "Handlers is a table of the library"); err != nil {
		t.Error(err)
	}
}

func TestRanksWithOtherPartsDoNotJoin(t *testing.T) {
	with := func(names ...string) Config {
		c := Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Handlers: am.NewTable()}
		for _, n := range names {
			c = withNeeds(c, needs{handlers: (&libraryPart{name: n, f: twice}).register})
		}
		return c
	}
	for r, err := range failToJoin(t, with("conduit.a"), with("conduit.a"), with()) {
		if err := wantText(err, "rank 2 has 0 handlers of the library, rank 0 has 1: start the same program on all ranks, with the same Config"); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for r, err := range failToJoin(t, with("conduit.a"), with("conduit.b")) {
		var table *am.TableError
		if !errors.As(err, &table) || !strings.Contains(err.Error(), `"conduit.b"`) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestHandlersUseTheLibraryDuringClose(t *testing.T) {
	part, user := &libraryPart{name: "conduit.twice", f: twice}, am.NewTable()
	var jobs [2]*Job
	var joined sync.WaitGroup
	quadruple := user.Handle("quadruple", func(c *am.Call) {
		later, n := c.Defer(0), c.Arg(0)
		go func() { // rank 1 is in Close, and has been told to wait for rank 0 there
			joined.Wait()
			j := jobs[1]
			for range 100 {
				if r, err := part.of(j).Call(context.Background(), j.services(), 0, n); err != nil || r.Arg(0) != 2*n {
					t.Errorf("the library's reply in Close: %v, %v", r.Args(), err)
				}
			}
			_ = later.Reply(4 * n)
		}()
	})
	fabrics(t, func(t *testing.T, cfg Config) {
		joined = sync.WaitGroup{}
		joined.Add(2)
		cfg.Handlers = user
		runLocal(t, 2, withNeeds(cfg, needs{handlers: part.register}), func(ctx context.Context, j *Job) error {
			jobs[j.Rank()] = j
			joined.Done()
			joined.Wait()
			if j.Rank() == 1 {
				return nil
			}
			for i := range uint64(10) {
				if r, err := quadruple.Call(ctx, j, 1, i); err != nil || r.Arg(0) != 4*i {
					return fmt.Errorf("reply %v: %w", r.Args(), err)
				}
			}
			return nil
		})
	})
}

// Large payloads go into the user's region, by its offsets, and those of the library anywhere.
func TestLargePayloadsGoIntoTheirSegment(t *testing.T) {
	const size, at = 100000, 64
	fabrics(t, func(t *testing.T, cfg Config) {
		var senders sync.Map // *am.Table: *am.Large
		register := func(table *am.Table, name string) {
			senders.Store(table, table.HandleLarge(name, am.Receiver{
				Announced: func(a *am.Announcement) { _ = a.Grant(a.Arg(0)) },
				Ended: func(a *am.Announcement, err error) {
					if err != nil || !bytes.Equal(a.Payload(), bytes.Repeat([]byte{byte(1 + a.From())}, size)) {
						t.Errorf("%s: from rank %d: %v", name, a.From(), err)
					}
				},
			}))
		}
		user := am.NewTable()
		register(user, "large")
		cfg.Handlers, cfg.SegmentSize = user, size+at
		cfg.parts = []func(*Config) needs{parts[0], func(*Config) needs {
			return needs{handlers: func(table *am.Table) { register(table, "conduit.large") }}
		}}
		runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			of := func(table *am.Table) *am.Large { x, _ := senders.Load(table); return x.(*am.Large) }
			payload := bytes.Repeat([]byte{byte(1 + j.Rank())}, size)
			off := j.layout.UserOffset()
			err := of(user).Send(ctx, w, 1-j.Rank(), payload, at)
			if err == nil {
				err = j.Barrier(ctx)
			}
			if seg := j.Segment(); err == nil && (!bytes.Equal(seg[:at], make([]byte, at)) || seg[at] != byte(2-j.Rank())) {
				err = errors.New("the payload lies elsewhere")
			}
			return errors.Join(err, j.Barrier(ctx), of(j.library.table).Send(ctx, j.services(), 1-j.Rank(), payload, off+at))
		}))
	})
}
