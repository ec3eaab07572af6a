package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/proctest"
)

const testSecret = "0123456789abcdef0123456789abcdef"

// tcpRanks makes rendezvous of n ranks whose listener is already bound, as
// under the own launcher.
func tcpRanks(t *testing.T, n int, change func(rank int, rv *rendezvous)) []*rendezvous {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	rvs := make([]*rendezvous, n)
	for r := range rvs {
		rvs[r] = &rendezvous{
			rank: r, size: n, job: "test", addr: ln.Addr().String(), secret: []byte(testSecret),
			timeout: 30 * time.Second, log: quiet, protocol: protocol,
			handshake: handshakeTime, grace: 30 * time.Second, exit: func(int) {},
		}
		if r == 0 {
			rvs[0].answered = make(chan struct{})
			if rvs[0].listener, err = ln.(*net.TCPListener).File(); err != nil {
				t.Fatal(err)
			}
		}
		if change != nil {
			change(r, rvs[r])
		}
	}
	return rvs
}

// join joins all at once; entries that are nil stay away. A rank 0 that refuses has answered all of
// them when it ends, however late they came.
func join(ctx context.Context, rvs []*rendezvous) ([]Bootstrap, []error) {
	ranks, errs := make([]Bootstrap, len(rvs)), make([]error, len(rvs))
	var wg, others sync.WaitGroup
	for i, rv := range rvs {
		if rv == nil {
			continue
		}
		if rv.rank != 0 {
			others.Add(1)
		}
		wg.Go(func() {
			if rv.rank != 0 {
				defer others.Done()
			}
			be, err := rv.join(ctx)
			if errs[i] = err; err == nil {
				ranks[i] = newJob(be, "tcp", Options{Log: quiet}.withDefaults())
			}
		})
	}
	others.Wait()
	if !slices.ContainsFunc(ranks[1:], func(b Bootstrap) bool { return b != nil }) {
		close(rvs[0].answered)
	}
	wg.Wait()
	return ranks, errs
}

// inPlaceOfRankZero is rank 0's listener, for a test that answers itself.
func inPlaceOfRankZero(t *testing.T, rvs []*rendezvous) net.Listener {
	t.Helper()
	ln, err := net.FileListener(rvs[0].listener)
	rvs[0].listener.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func joined(t *testing.T, n int) []Bootstrap {
	t.Helper()
	ranks, errs := join(bounded(t), tcpRanks(t, n, nil))
	t.Cleanup(func() { closeAll(ranks) })
	noErrors(t, errs)
	return ranks
}

// die ends a rank as SIGKILL would: its connections close at once.
func die(b Bootstrap) {
	switch be := b.(*job).be.(type) {
	case *peer:
		be.link.cut()
	case *root:
		be.hub.mu.Lock()
		clear(be.hub.deliver) // a dead process sends nothing
		be.hub.mu.Unlock()
		_ = be.ln.Close()
		for _, l := range be.links {
			if l != nil {
				l.cut()
			}
		}
	}
}

func TestTCPJoins32Ranks(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	ranks := joined(t, 32)
	noErrors(t, onAll(ranks, func(b Bootstrap) error {
		got, err := b.Exchange(ctx, pattern(b.Rank(), 0, 400))
		for r := range got {
			if !bytes.Equal(got[r], pattern(r, 0, 400)) {
				return fmt.Errorf("blob of rank %d differs", r)
			}
		}
		return err
	}))
	for r, b := range ranks {
		if local, size, ok := b.Local(); local != r || size != 32 || !ok {
			t.Errorf("rank %d: local place %d of %d, %v", r, local, size, ok)
		}
		if b.JobID() != "test" {
			t.Errorf("rank %d: job %q", r, b.JobID())
		}
	}
	noErrors(t, onAll(ranks, func(b Bootstrap) error { return b.Close() }))
	for r, b := range ranks {
		if l, ok := <-b.Lost(); ok {
			t.Errorf("rank %d: a good end was taken for %v", r, l)
		}
	}
}

func TestTCPGivesAllRanksOneJobIDWhereNoneWasSet(t *testing.T) {
	t.Parallel()
	ranks, errs := join(bounded(t), tcpRanks(t, 3, func(_ int, rv *rendezvous) { rv.job = "" }))
	defer closeAll(ranks)
	noErrors(t, errs)
	if id := ranks[0].JobID(); id == "" || ranks[1].JobID() != id || ranks[2].JobID() != id {
		t.Errorf("job ids %q, %q, %q", ranks[0].JobID(), ranks[1].JobID(), ranks[2].JobID())
	}
}

// refusal checks that an error is a JoinError with a reason and words.
func refusal(t *testing.T, what string, err error, want Reason, words ...string) {
	t.Helper()
	var e *JoinError
	if !errors.As(err, &e) || e.Reason != want {
		t.Errorf("%s: %v, want a JoinError of reason %d", what, err, want)
		return
	}
	has(t, what, err, words...)
}

// has checks the words of an error.
func has(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error()+"$", w) {
			t.Errorf("%s: %v lacks %q", what, err, w)
		}
	}
}

// patiently gives ranks more and more time to join, until all but the missing one have: on a busy
// machine that may take long. The last try counts in any case.
func patiently(try func(timeout time.Duration) (errs []error), missing int) (timeout time.Duration, errs []error) {
	for timeout = time.Second; ; timeout *= 4 {
		errs = try(timeout)
		var e *JoinError
		if timeout > 10*time.Second || errors.As(errs[0], &e) && slices.Equal(e.Ranks, []int{missing}) {
			return timeout, errs
		}
	}
}

func TestTCPMissingRankIsNamedByAllSurvivors(t *testing.T) {
	t.Parallel()
	timeout, errs := patiently(func(timeout time.Duration) []error {
		rvs := tcpRanks(t, 5, func(_ int, rv *rendezvous) { rv.timeout = timeout })
		rvs[2] = nil
		_, errs := join(bounded(t), rvs)
		return errs
	}, 2)
	for r, err := range errs {
		if r != 2 {
			refusal(t, fmt.Sprintf("rank %d", r), err, ReasonMissing, fmt.Sprintf("4 of 5 ranks arrived within %v; missing rank 2", timeout))
		}
	}
}

// The caller's context may end before the time to join: then the verdict names the context.
func TestTCPACallersDeadlineIsTheCauseOfTheVerdict(t *testing.T) {
	t.Parallel()
	enough := errors.New("the caller has waited enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
	defer cancel()
	rvs := tcpRanks(t, 2, nil)
	rvs[1] = nil
	_, errs := join(ctx, rvs)
	refusal(t, "rank 0", errs[0], ReasonMissing, "1 of 2 ranks arrived", enough.Error(), "missing rank 1")
	if err := errs[0]; !errors.Is(err, enough) || !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "30s") {
		t.Errorf("%v", err)
	}
}

// A rank that has arrived must not be blamed, however long it has waited: its
// connection had once the same deadline as the listener.
func TestTCPDeadlineNamesTheMissingRank(t *testing.T) {
	t.Parallel()
	_, errs := patiently(func(timeout time.Duration) []error {
		rvs := tcpRanks(t, 3, func(r int, rv *rendezvous) { rv.timeout = time.Duration(3-r) * timeout }) // rank 1 is less patient than rank 0
		rvs[2] = nil
		_, errs := join(bounded(t), rvs)
		return errs
	}, 2)
	for r := range 2 {
		refusal(t, fmt.Sprintf("rank %d", r), errs[r], ReasonMissing, "missing rank 2")
		if errs[r] != nil && strings.Contains(errs[r].Error(), "rank 1") {
			t.Errorf("rank %d blames rank 1: %v", r, errs[r])
		}
	}
}

// misfits are ranks that make the job impossible, and what all ranks then report.
var misfits = map[string]struct {
	spoil  func(rvs []*rendezvous)
	reason Reason
	words  []string
}{
	"duplicate": {func(rvs []*rendezvous) { rvs[3].rank = 2 }, ReasonDuplicate,
		[]string{"duplicate rank 2: ", fmt.Sprintf("pid %d and ", os.Getpid())}},
	"foreign": {func(rvs []*rendezvous) { rvs[3].job = "another" }, ReasonForeign,
		[]string{"rank 3 on ", `belongs to job "another", this is job "test"`}},
	"other protocol": {func(rvs []*rendezvous) { rvs[3].protocol = 2 }, ReasonProtocol,
		[]string{"rank 3 on ", "speaks protocol 2, rank 0 speaks 1: mixed binaries"}},
	"other size": {func(rvs []*rendezvous) { rvs[3].size = 5 }, ReasonShape,
		[]string{"rank 3 on ", "was started for 5 ranks, rank 0 for 4"}},
}

func TestTCPAMisfitFailsAllRanks(t *testing.T) {
	t.Parallel()
	for name, c := range misfits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rvs := tcpRanks(t, 4, nil)
			c.spoil(rvs)
			_, errs := join(bounded(t), rvs)
			for i, err := range errs {
				refusal(t, fmt.Sprintf("process %d", i), err, c.reason, c.words...)
			}
		})
	}
}

func TestTCPSecondRankZeroIsADuplicate(t *testing.T) {
	t.Parallel()
	p := &root{rv: &rendezvous{protocol: protocol, size: 2, job: "j"}, links: make([]*link, 2), hellos: make([]hello, 2)}
	if e := p.problemLocked(hello{protocol: protocol, size: 2, job: "j"}); e == nil || e.Reason != ReasonDuplicate {
		t.Errorf("hello of rank 0: %v", e)
	}
}

func TestTCPALateDiallerGetsTheVerdict(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"duplicate", "foreign"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t)
			rvs := tcpRanks(t, 5, nil)
			misfits[name].spoil(rvs)
			var wg sync.WaitGroup
			ended := make(chan struct{}, 4) // rank 0 is the last: it stays to answer the late
			for i, rv := range rvs[:4] {
				wg.Go(func() {
					if _, err := rv.join(ctx); err == nil {
						t.Errorf("process %d joined", i)
					}
					ended <- struct{}{}
				})
			}
			<-ended
			_, err := rvs[4].join(ctx)
			<-ended
			<-ended
			close(rvs[0].answered)
			refusal(t, "late rank", err, misfits[name].reason)
			wg.Wait()
		})
	}
}

func TestTCPAProcessAfterTheStartIsRefused(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	rvs := tcpRanks(t, 2, nil)
	ranks, errs := join(ctx, rvs)
	defer closeAll(ranks)
	noErrors(t, errs)
	_, err := rvs[1].join(ctx)
	refusal(t, "second rank 1", err, ReasonStarted, "the job has started; rank 1 is ")
	noErrors(t, onAll(ranks, func(b Bootstrap) error { return b.Barrier(ctx) }))
}

func TestTCPWrongSecretIsRefusedOnBothSides(t *testing.T) {
	t.Parallel()
	var addr string
	_, errs := patiently(func(timeout time.Duration) []error {
		rvs := tcpRanks(t, 3, func(_ int, rv *rendezvous) { rv.timeout = 2 * timeout })
		rvs[1].secret = []byte("another secret of sufficient length")
		addr = rvs[1].addr
		_, errs := join(bounded(t), rvs)
		return errs
	}, 1)
	if !errors.Is(errs[1], errNotOurs) || !strings.Contains(errs[1].Error(), "rank 1: "+addr+": peer does not hold this job's secret") {
		t.Errorf("rank 1: %v", errs[1])
	}
	for _, r := range []int{0, 2} {
		refusal(t, fmt.Sprintf("rank %d", r), errs[r], ReasonMissing, "missing rank 1", "refused: 127.0.0.1: ", "bad certificate (1 times)")
	}
}

// A server that proves nothing must not get a hello; one that proves another
// key is refused by the client, whatever the server thinks of the client.
func TestTCPClientChecksTheServerToo(t *testing.T) {
	t.Parallel()
	impostor, err := tlsFor([]byte("another secret of sufficient length"))
	if err != nil {
		t.Fatal(err)
	}
	impostor.VerifyConnection = nil // it takes any client
	rvs := tcpRanks(t, 2, nil)
	ln := inPlaceOfRankZero(t, rvs)
	got := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			defer c.Close()
			_, _, err = readFrame(tlsServer(c, impostor), maxHello)
		}
		got <- err
	}()
	if _, err := rvs[1].join(bounded(t)); !errors.Is(err, errNotOurs) {
		t.Errorf("joined an impostor: %v", err)
	}
	if err := <-got; err == nil {
		t.Error("the impostor received rank names")
	}
}

func TestTCPNoRankZeroSaysWhereAndWhy(t *testing.T) {
	t.Parallel()
	rvs := tcpRanks(t, 2, func(_ int, rv *rendezvous) { rv.timeout = time.Second })
	rvs[0].listener.Close()
	rvs[1].addr = proctest.HeldAddr(t)
	_, err := rvs[1].join(bounded(t))
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want a deadline", err)
	}
	has(t, "rank 1", err, "rank 1: no rank 0 at "+rvs[1].addr+" within ", "connection refused")
}

func TestTCPAnAddressThatFailsIsExplained(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	for _, c := range []struct {
		rank    int
		addr    string
		timeout time.Duration
		words   []string
	}{
		{1, "rank0.invalid:7777", 300 * time.Millisecond, []string{"rank 1: no rank 0 at rank0.invalid:7777 within ", "lookup rank0.invalid"}},
		{0, ln.Addr().String(), time.Second, []string{ln.Addr().String(), "choose another port"}},
		{0, "192.0.2.7:7777", time.Second, []string{"rank 0 must run on the host that the address names"}},
	} {
		t.Run(c.words[0], func(t *testing.T) {
			t.Parallel()
			_, err := lone(c.rank, c.addr, c.timeout).join(bounded(t))
			has(t, c.addr, err, c.words...)
		})
	}
}

// lone is one rank of two.
func lone(rank int, addr string, timeout time.Duration) *rendezvous {
	return &rendezvous{
		rank: rank, size: 2, addr: addr, secret: []byte(testSecret), timeout: timeout,
		log: quiet, protocol: protocol, handshake: handshakeTime,
	}
}

func TestTCPWithoutSecretStaysOnLoopback(t *testing.T) {
	t.Parallel()
	far := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7777}
	for _, c := range []struct {
		addr     net.Addr
		secret   []byte
		insecure bool
		ok       bool
	}{
		{far, nil, false, false},
		{far, nil, true, true},
		{far, []byte(testSecret), false, true},
		{&net.TCPAddr{IP: net.IPv6zero}, nil, false, false},
		{&net.TCPAddr{IP: net.IPv4zero}, nil, false, false},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 1, 1)}, nil, false, true},
		{&net.TCPAddr{IP: net.IPv6loopback}, nil, false, true},
	} {
		rv := &rendezvous{secret: c.secret, insecure: c.insecure}
		if err := rv.trusts(c.addr); (err == nil) != c.ok {
			t.Errorf("%v, secret %v, insecure %v: %v", c.addr, c.secret != nil, c.insecure, err)
		}
	}
	// And rank 0 asks: on any address of this host that is not loopback.
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		ip := a.(*net.IPNet).IP
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		rv := lone(0, net.JoinHostPort(ip.String(), "0"), time.Second)
		rv.secret = nil
		if _, err := rv.join(bounded(t)); err == nil || !strings.Contains(err.Error(), "IBCONDUIT_SECRET_FILE") {
			t.Errorf("listened at %v without a secret: %v", ip, err)
		}
	}
}

func TestTCPCancelledJoinEndsForAll(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	for _, impatient := range []int{0, 1} {
		t.Run(fmt.Sprintf("rank %d", impatient), func(t *testing.T) {
			t.Parallel()
			rvs := tcpRanks(t, 4, nil)[:3] // rank 3 never comes
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			var wg, others sync.WaitGroup
			others.Add(2)
			for r, rv := range rvs {
				c := ctx
				if r == impatient {
					c = short
				}
				wg.Go(func() {
					if r != 0 {
						defer others.Done()
					}
					if _, err := rv.join(c); err == nil {
						t.Errorf("rank %d joined", r)
					} else if r == impatient && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("rank %d: %v", r, err)
					}
				})
			}
			others.Wait()
			close(rvs[0].answered)
			wg.Wait()
		})
	}
}
