package am_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// mailbox is a receiver that keeps what it is told.
type mailbox struct {
	announced chan *am.Announcement
	ended     chan error
	data      []byte // of the last payload that arrived
}

func newMailbox(table *am.Table) (*am.Large, *mailbox) {
	m := &mailbox{make(chan *am.Announcement, 100), make(chan error, 100), nil}
	return table.HandleLarge("mail", am.Receiver{
		Announced: func(a *am.Announcement) { m.announced <- a },
		Ended: func(a *am.Announcement, err error) {
			if err == nil {
				m.data = bytes.Clone(a.Payload())
			}
			m.ended <- err
		},
	}), m
}

// mailing are two ranks with a mailbox.
func mailing(t *testing.T, cfg am.Config) (*am.Large, *mailbox, []*am.Endpoint, *amtest.Memory) {
	t.Helper()
	cfg.Table = am.NewTable()
	x, m := newMailbox(cfg.Table)
	net := amtest.NewMemory(2, 1<<16)
	return x, m, endpoints(t, net, 2, cfg), net
}

// sending starts a Send, whose error the channel gets.
func sending(ctx context.Context, x *am.Large, v am.Via, rank int, b []byte, args ...uint64) chan error {
	err := make(chan error, 1)
	go func() { err <- x.Send(ctx, v, rank, b, args...) }()
	return err
}

func TestALargePayloadGoesWhereItIsGranted(t *testing.T) {
	x, m, l, _ := mailing(t, am.Config{})
	ctx := bounded(t)
	for _, to := range []int{0, 1} { // to itself, too
		for _, n := range []int{0, 1, 50000} {
			want := pattern(uint64(n), n)
			sent := sending(ctx, x, l[0], to, want, 3, 4)
			a := <-m.announced
			if a.From() != 0 || a.Size() != n || a.Arg(0) != 3 || a.Arg(1) != 4 || a.Arg(2) != 0 || len(a.Args()) != 2 || a.Endpoint() != l[to] || a.Payload() != nil {
				t.Fatalf("announced %d bytes of rank %d with %v", a.Size(), a.From(), a.Args())
			}
			if err := a.Grant(1<<16 + 1); !errors.As(err, new(*fabric.BoundsError)) {
				t.Fatalf("a grant beyond the segment: %v", err)
			}
			if err := a.Grant(100); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(a.Grant(8), a.Refuse(errors.New("no"))); !errors.Is(err, am.ErrAnswered) {
				t.Fatalf("after a grant: %v", err)
			}
			if err := errors.Join(<-sent, <-m.ended); err != nil || !bytes.Equal(m.data, want) {
				t.Fatalf("%d bytes to rank %d: %v, right is %v", n, to, err, bytes.Equal(m.data, want))
			}
		}
	}
	if s := l[0].Stats(); s.Large.Sent != 6 || s.Large.Delivered != 3 || s.Check() != nil {
		t.Errorf("%+v", s.Large)
	}
}

func TestALargePayloadIsRefusedWithAReason(t *testing.T) {
	table := am.NewTable()
	x := table.HandleLarge("no", am.Receiver{
		Announced: func(a *am.Announcement) {
			switch a.Arg(0) {
			case 1:
				panic("at the disco")
			case 2:
				_ = a.Refuse(nil)
				return
			}
			_ = a.Refuse(errors.New(strings.Repeat("no ", 1000)))
		},
		Ended: func(*am.Announcement, error) { t.Error("a payload that was refused has ended") },
	})
	l := endpoints(t, amtest.NewMemory(2, 1<<12), 2, am.Config{Table: table})
	for arg, want := range []string{"no no no", "the receiver panicked: at the disco", "no reason"} {
		for to := range 2 {
			var refused *am.RefusedError
			err := x.Send(bounded(t), l[0], to, make([]byte, 10), uint64(arg))
			if !errors.As(err, &refused) || refused.Rank != to || refused.Handler != "no" || !strings.HasPrefix(refused.Text, want) || len(refused.Text) > 512 {
				t.Errorf("rank %d: %v", to, err)
			}
		}
	}
}

func TestALargePayloadIsWithdrawnWithItsContext(t *testing.T) {
	x, m, l, _ := mailing(t, am.Config{})
	ctx, cancel := context.WithCancelCause(bounded(t))
	sent := sending(ctx, x, l[0], 1, make([]byte, 10))
	a := <-m.announced
	cause := errors.New("enough")
	cancel(cause)
	if err := <-sent; !errors.Is(err, cause) {
		t.Errorf("Send: %v", err)
	}
	if err := <-m.ended; err != am.ErrWithdrawn {
		t.Errorf("Ended: %v", err)
	}
	if _, granted := a.Granted(); granted || a.Grant(0) != am.ErrWithdrawn {
		t.Errorf("a grant after the withdrawal: %v", a.Grant(0))
	}
	if err := errors.Join(l[0].Quiesce(bounded(t)), l[1].Quiesce(bounded(t))); err != nil {
		t.Error(err)
	}
	for i, want := range []am.LargeStats{{Announced: 1, Withdrawn: 1, StepsSent: 2, StepsArrived: 1}, {Offered: 1, Cancelled: 1, StepsSent: 1, StepsArrived: 2}} {
		if got := l[i].Stats().Large; got != want {
			t.Errorf("rank %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestTheWatchdogNamesAGrantThatDoesNotCome(t *testing.T) {
	// Long enough for all sends to begin before the first has waited for too long.
	x, m, l, _ := mailing(t, am.Config{StallAfter: 400 * time.Millisecond})
	var all sync.WaitGroup
	const sends = 64 // a rank has 16 places: most wait for one until they have waited for too long
	texts := make(chan string, sends)
	for range sends {
		all.Go(func() { texts <- fmt.Sprint(x.Send(bounded(t), l[0], 1, make([]byte, 10))) })
	}
	all.Wait()
	close(texts)
	seen := make(map[string]int)
	for text := range texts {
		for _, what := range []string{"waits for a grant of memory", "waits for a place among the payloads announced to the rank"} {
			if strings.Contains(text, what) {
				seen[what]++
			}
		}
	}
	if len(seen) != 2 || seen["waits for a grant of memory"] < 16 {
		t.Errorf("%v", seen)
	}
	for range seen["waits for a grant of memory"] {
		if err := <-m.ended; err != am.ErrWithdrawn {
			t.Error(err)
		}
	}
}

// EndRequests lets what is announced go on, and Quiesce waits for it.
func TestEndRequestsRefusesAnnouncements(t *testing.T) {
	x, m, l, _ := mailing(t, am.Config{})
	ctx := bounded(t)
	sent := sending(ctx, x, l[0], 1, make([]byte, 10))
	a := <-m.announced
	if err := l[0].EndRequests(ctx); err != nil {
		t.Fatal(err)
	}
	if err := x.Send(ctx, l[0], 1, nil); !errors.Is(err, am.ErrClosed) {
		t.Errorf("behind EndRequests: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	var rest *am.InFlightError
	for i := range l {
		if err := l[i].Quiesce(short); !errors.As(err, &rest) || rest.Transfers != 1 || !strings.Contains(rest.Error(), "1 large payloads announced") {
			t.Errorf("rank %d: Quiesce: %v", i, err)
		}
	}
	if err := errors.Join(a.Grant(0), <-sent, <-m.ended, l[0].Quiesce(ctx), l[1].Quiesce(ctx)); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsLargePayloads(t *testing.T) {
	for closes, name := range []string{"the sender", "the receiver"} {
		t.Run(name, func(t *testing.T) {
			x, m, l, net := mailing(t, am.Config{})
			sent := sending(bounded(t), x, l[0], 1, make([]byte, 10))
			a := <-m.announced
			if err := a.Grant(1 << 20); err == nil {
				t.Fatal("granted")
			}
			var rest *am.InFlightError
			if err := l[closes].Close(); !errors.As(err, &rest) || rest.Transfers != 1 {
				t.Errorf("Close: %v", err)
			}
			want := []error{am.ErrClosed, fabric.ErrPeerDown}
			if closes == 1 {
				want[0], want[1] = want[1], want[0]
			}
			net.Kill(closes, errors.New("it has left"))
			if err := <-sent; !errors.Is(err, want[0]) {
				t.Errorf("Send: %v, want %v", err, want[0])
			}
			if err := <-m.ended; !errors.Is(err, want[1]) {
				t.Errorf("Ended: %v, want %v", err, want[1])
			}
			if err := a.Grant(0); !errors.Is(err, want[1]) {
				t.Errorf("Grant: %v, want %v", err, want[1])
			}
		})
	}
}

func TestMisusedLargePayloadsAreErrors(t *testing.T) {
	x, _, l, _ := mailing(t, am.Config{})
	other := am.NewTable().HandleLarge("mail", am.Receiver{Announced: func(*am.Announcement) {}, Ended: func(*am.Announcement, error) {}})
	ctx, ended := bounded(t), context.Context(nil)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for want, err := range map[string]error{
		"no endpoint":                           x.Send(ctx, nil, 0, nil),
		"rank 2":                                x.Send(ctx, l[0], 2, nil),
		"of another table":                      other.Send(ctx, l[0], 1, nil),
		"arguments of a large payload of 16":    x.Send(ctx, l[0], 1, nil, make([]uint64, am.MaxArgs)...),
		`send "mail" to rank 1: context cancel`: x.Send(ended, l[0], 1, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a receiver without functions was registered")
		}
	}()
	am.NewTable().HandleLarge("x", am.Receiver{})
}

// fences records what a Fencer is told.
type fences struct {
	mu   sync.Mutex
	told []string
	deny error
}

func (f *fences) note(format string, args ...any) {
	f.mu.Lock()
	f.told = append(f.told, fmt.Sprintf(format, args...))
	f.mu.Unlock()
}
func (f *fences) Request(_ context.Context, _ am.Via, rank int, off uint64, n int) error {
	f.note("request %d %d %d", rank, off, n)
	if n > 0 {
		return f.deny
	}
	return nil
}
func (f *fences) Reply(am.Via, int, error) { f.note("reply") }
func (f *fences) Handler(int)              { f.note("handler") }

// through is a Via that is no endpoint, as a worker is.
type through struct{ l *am.Endpoint }

func (v through) Endpoint(int) *am.Endpoint { return v.l }

func TestLargePayloadsTellTheFencer(t *testing.T) {
	f := &fences{}
	x, m, l, _ := mailing(t, am.Config{Fencer: f})
	for _, deny := range []error{nil, errors.New("it cannot write back")} {
		f.told, f.deny = nil, deny
		sent := sending(bounded(t), x, through{l[0]}, 1, make([]byte, 10))
		if err := (<-m.announced).Grant(100); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; !errors.Is(err, deny) {
			t.Errorf("Send: %v, want %v", err, deny)
		}
		if err := <-m.ended; (err == nil) != (deny == nil) {
			t.Errorf("Ended: %v", err)
		}
		eventually(t, "both functions have ended", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.told) == 6
		})
		count := make(map[string]int)
		for _, s := range f.told {
			count[s]++
		}
		if count["request 1 0 0"] != 1 || count["request 1 100 10"] != 1 || count["handler"] != 4 || f.told[0] != "request 1 0 0" {
			t.Errorf("it was told %v", f.told)
		}
	}
}

// closing is a Fencer that has the endpoint closed before data are sent.
type closing struct {
	fences
	end func()
}

func (f *closing) Request(_ context.Context, _ am.Via, _ int, _ uint64, n int) error {
	if n > 0 {
		f.end()
	}
	return nil
}

func TestNothingIsWrittenBehindTheEndOfAPayload(t *testing.T) {
	f := &closing{}
	x, m, l, net := mailing(t, am.Config{Fencer: f})
	f.end = func() {
		if err := l[0].Close(); !errors.As(err, new(*am.InFlightError)) {
			t.Errorf("Close: %v", err)
		}
		if err := <-m.ended; err != am.ErrClosed { // the memory is the receiver's again
			t.Errorf("Ended: %v", err)
		}
	}
	sent := sending(bounded(t), x, through{l[0]}, 0, []byte("late"))
	if err := (<-m.announced).Grant(100); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; !errors.Is(err, am.ErrClosed) || string(net.Rank(0).Segment[100:104]) == "late" {
		t.Errorf("Send to itself: %v, and wrote %q", err, net.Rank(0).Segment[100:104])
	}
}

func TestAReceiverThatEndsItsGoroutinePanics(t *testing.T) {
	table := am.NewTable()
	ended := make(chan error, 2)
	x := table.HandleLarge("quits", am.Receiver{
		Announced: func(a *am.Announcement) {
			switch a.Arg(0) {
			case 1:
				panic("") // refuses as well
			case 2:
				_ = a.Grant(0)
			}
			runtime.Goexit()
		},
		Ended: func(_ *am.Announcement, err error) { ended <- err; runtime.Goexit() },
	})
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, StallAfter: time.Second, CloseAfter: time.Second})
	for to := range l {
		for arg, want := range []string{"the receiver panicked: it called runtime.Goexit", "the receiver panicked: "} {
			var refused *am.RefusedError
			if err := x.Send(bounded(t), l[0], to, []byte{1}, uint64(arg)); !errors.As(err, &refused) || refused.Text != want {
				t.Errorf("rank %d: %v", to, err)
			}
		}
		if err := errors.Join(x.Send(bounded(t), l[0], to, []byte{1}, 2), l[to].Quiesce(bounded(t))); err != nil || len(ended) != to+1 {
			t.Errorf("rank %d: %v, and %d payloads have ended", to, err, len(ended))
		}
	}
	if err := errors.Join(l[0].Close(), l[1].Close()); err != nil {
		t.Error(err)
	}
}

// Where there is no attendant, a goroutine that parks handles what arrives, the payloads of quick
// receivers too.
func TestWhoParksMakesProgress(t *testing.T) {
	table := am.NewTable()
	var p am.Parker
	var announced, ended uintptr // by which goroutine
	x := table.HandleLarge("quick", am.Receiver{Quick: true, Announced: func(a *am.Announcement) {
		announced = lockrank.Goroutine()
		if err := a.Grant(0); err != nil {
			t.Error(err)
		}
	}, Ended: func(*am.Announcement, error) {
		ended = lockrank.Goroutine()
		p.Unpark()
	}})
	l := endpoints(t, amtest.NewMemory(2, 1<<12), 2, am.Config{Table: table, AttendAfter: -1})
	p = am.ParkerAt(l[1])
	sent := sending(bounded(t), x, l[0], 1, make([]byte, 10))
	for ended == 0 {
		if err := p.Park(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if self := lockrank.Goroutine(); announced != self || ended != self {
		t.Errorf("goroutine %d parks, %d grants and %d takes a payload", self, announced, ended)
	}
	over, end := context.WithCancelCause(bounded(t))
	end(errors.New("waited enough"))
	if err := p.Park(over); err != context.Cause(over) {
		t.Error(err)
	}
	if err := l[1].Close(); err != nil {
		t.Error(err)
	}
	if err := p.Park(bounded(t)); err != am.ErrClosed {
		t.Error(err)
	}
}
