package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakePMI is a PMI-1 server with the limits of real ones.
type fakePMI struct {
	size      int
	cutAt     int    // Hydra 4.0.2: longer values are cut to this in silence; 0: never
	lineLimit int    // Slurm 22.05: longer lines are never answered; 0: none
	permute   bool   // keys in reverse order, and some that were not asked for
	announce  int    // vallen_max; 0: 1024
	refuse    string // the command that fails with rc=-1

	mu      sync.Mutex
	kvs     map[string]string
	in      int
	barrier chan struct{}
	quit    chan struct{} // the test is over
	seen    []string      // every command, for the tests
	conns   sync.WaitGroup
}

func newFakePMI(t *testing.T, size int) *fakePMI {
	s := &fakePMI{size: size, kvs: map[string]string{}, barrier: make(chan struct{}), quit: make(chan struct{})}
	t.Cleanup(func() {
		close(s.quit)
		s.conns.Wait()
	})
	return s
}

// connect gives the descriptor that a rank would inherit.
func (s *fakePMI) connect(t *testing.T) int {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(p[0]), "server")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	s.conns.Go(func() { s.serve(c, -1) })
	t.Cleanup(func() { unix.Close(p[1]) })
	return p[1]
}

func (s *fakePMI) serve(c net.Conn, portRank int) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if s.lineLimit > 0 && len(line) > s.lineLimit {
			_, _ = io.Copy(io.Discard, in) // never answers again
			return
		}
		m, err := parsePMI(strings.TrimSpace(line))
		if err != nil {
			return
		}
		s.mu.Lock()
		s.seen = append(s.seen, strings.TrimSpace(line))
		s.mu.Unlock()
		if !s.answer(c, m, portRank) {
			return
		}
	}
}

func (s *fakePMI) answer(w io.Writer, m pmiLine, portRank int) bool {
	rc := "0"
	if m["cmd"] == s.refuse {
		rc = "-1"
	}
	switch m["cmd"] {
	case "initack":
		id, _ := strconv.Atoi(m["pmiid"])
		s.say(w, "cmd=initack")
		s.say(w, "cmd=set", "size="+strconv.Itoa(s.size))
		s.say(w, "cmd=set", "rank="+strconv.Itoa(id))
		s.say(w, "cmd=set", "debug=0")
	case "init":
		s.say(w, "cmd=response_to_init", "pmi_version=1", "pmi_subversion=1", "rc="+rc)
	case "get_maxes":
		vallen := s.announce
		if vallen == 0 {
			vallen = 1024
		}
		s.say(w, "cmd=maxes", "kvsname_max=256", "keylen_max=64", "vallen_max="+strconv.Itoa(vallen))
	case "get_my_kvsname":
		s.say(w, "cmd=my_kvsname", "kvsname=kvs_1_0_2_vm")
	case "put":
		v := m["value"]
		if s.cutAt > 0 && len(v) > s.cutAt {
			v = v[:s.cutAt]
		}
		s.mu.Lock()
		s.kvs[m["key"]] = v
		s.mu.Unlock()
		s.say(w, "cmd=put_result", "rc="+rc, "msg=success")
	case "barrier_in":
		s.wait()
		s.say(w, "cmd=barrier_out")
	case "get":
		s.mu.Lock()
		v, ok := s.kvs[m["key"]]
		s.mu.Unlock()
		if !ok {
			s.say(w, "cmd=get_result", "rc=-1", "msg=key_"+m["key"]+"_not_found", "value=unknown")
			return true
		}
		s.say(w, "cmd=get_result", "rc="+rc, "msg=success", "value="+v)
	case "finalize":
		s.say(w, "cmd=finalize_ack")
	case "abort":
		return false
	default:
		return false // Hydra ends the job at an unknown command
	}
	return true
}

func (s *fakePMI) say(w io.Writer, fields ...string) {
	if s.permute {
		fields = append(fields, "hint=unasked", "zz=1")
		slices.Reverse(fields)
	}
	_, _ = io.WriteString(w, strings.Join(fields, " ")+"\n")
}

func (s *fakePMI) wait() {
	s.mu.Lock()
	b := s.barrier
	if s.in++; s.in == s.size {
		s.in, s.barrier = 0, make(chan struct{})
		close(b)
	}
	s.mu.Unlock()
	select {
	case <-b:
	case <-s.quit:
	}
}

// ranks joins all ranks of the server through inherited descriptors.
func (s *fakePMI) ranks(t *testing.T) []Bootstrap {
	t.Helper()
	ranks := make([]Bootstrap, s.size)
	for r := range ranks {
		b, err := New(bounded(t), Options{Log: quiet, Lookup: env(
			"PMI_FD", strconv.Itoa(s.connect(t)), "PMI_RANK", strconv.Itoa(r), "PMI_SIZE", strconv.Itoa(s.size), "IBCONDUIT_BOOTSTRAP", "pmi1")})
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
		ranks[r] = b
	}
	t.Cleanup(func() { closeAll(ranks) })
	return ranks
}

// Both measured limits: values of 512 characters pass where 1024, which the
// servers announce, are cut by the one and never answered by the other.
func TestPMI1ExchangesBlobsWithinServersLimits(t *testing.T) {
	for name, change := range map[string]func(*fakePMI){
		"no limit":                     func(*fakePMI) {},
		"Hydra cuts at 1023":           func(s *fakePMI) { s.cutAt = 1023 },
		"Slurm's line of 1 KiB":        func(s *fakePMI) { s.lineLimit = 1024 },
		"keys permuted and additional": func(s *fakePMI) { s.permute = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakePMI(t, 4)
			change(s)
			ranks := s.ranks(t)
			ctx := bounded(t)
			noErrors(t, onAll(ranks, func(b Bootstrap) error { return checkExchanges(ctx, b) }))
			if ranks[2].Name() != "pmi1 (PMI_FD)" || ranks[2].JobID() != "kvs_1_0_2_vm" {
				t.Errorf("%s, job %s", ranks[2].Name(), ranks[2].JobID())
			}
			noErrors(t, onAll(ranks, Bootstrap.Close))
			if r, n, ok := ranks[1].Local(); r != 1 || n != 4 || !ok { // from the headers
				t.Errorf("local place %d of %d, %v", r, n, ok)
			}
		})
	}
}

func TestPMI1SilentCutIsFoundByTheChecksum(t *testing.T) {
	s := newFakePMI(t, 2)
	s.cutAt = 300
	ctx := bounded(t)
	for r, err := range onAll(s.ranks(t), func(b Bootstrap) error {
		_, err := b.Exchange(ctx, make([]byte, 5000))
		return err
	}) {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestPMI1NeverUsesAKeyTwiceNorAnUnknownCommand(t *testing.T) {
	s := newFakePMI(t, 2)
	ctx := bounded(t)
	ranks := s.ranks(t)
	for range 3 {
		noErrors(t, onAll(ranks, func(b Bootstrap) error {
			_, err := b.Exchange(ctx, make([]byte, 1000))
			return err
		}))
	}
	noErrors(t, onAll(ranks, Bootstrap.Close))
	known := []string{"init", "get_maxes", "get_my_kvsname", "put", "get", "barrier_in", "finalize"}
	keys := map[string]bool{}
	for _, line := range s.seen {
		m, _ := parsePMI(line)
		if !slices.Contains(known, m["cmd"]) {
			t.Errorf("unknown command in %q", line)
		}
		if m["cmd"] == "put" {
			if keys[m["key"]] {
				t.Errorf("key %s was put twice", m["key"])
			}
			keys[m["key"]] = true
		}
	}
	if len(keys) < 2*3*2 {
		t.Errorf("only %d keys were seen", len(keys))
	}
}

func TestPMI1ByPortTakesRankAndSizeFromTheServer(t *testing.T) {
	for _, permute := range []bool{false, true} {
		s := newFakePMI(t, 2)
		s.permute = permute
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				s.conns.Go(func() { s.serve(c, 0) })
			}
		}()
		ranks := make([]Bootstrap, 2)
		for r := range ranks {
			ranks[r], err = New(bounded(t), Options{Log: quiet, Lookup: env("PMI_PORT", ln.Addr().String(), "PMI_ID", strconv.Itoa(r))})
			if err != nil {
				t.Fatal(err)
			}
			if ranks[r].Rank() != r || ranks[r].Size() != 2 {
				t.Errorf("%d/%d", ranks[r].Rank(), ranks[r].Size())
			}
		}
		ctx := bounded(t)
		noErrors(t, onAll(ranks, func(b Bootstrap) error { return checkExchanges(ctx, b) }))
		noErrors(t, onAll(ranks, Bootstrap.Close))
		ln.Close()
	}
}

func TestPMI1BarrierSaysWhatToDoWhenRanksStayAway(t *testing.T) {
	s := newFakePMI(t, 2)
	ranks := s.ranks(t)
	err := ranks[0].Barrier(endsWhen(bounded(t), func() { inCollective(t, ranks[0]) }))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not all 2 ranks within ") || !strings.Contains(err.Error(), "see the launcher's message: context deadline exceeded") {
		t.Errorf("%v", err)
	}
	// The answer that comes too late must not be taken for that of the next.
	if _, err := ranks[0].Exchange(bounded(t), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("next Exchange: %v", err)
	}
}

func TestPMI1CloseEndsABarrier(t *testing.T) {
	s := newFakePMI(t, 2)
	ranks := s.ranks(t)
	first := make(chan error)
	go func() { first <- ranks[0].Barrier(bounded(t)) }()
	inCollective(t, ranks[0])
	if err := ranks[0].Close(); err != nil {
		t.Error(err)
	}
	if err := <-first; !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestPMI1LauncherThatGoesAwayIsNamed(t *testing.T) {
	s := newFakePMI(t, 2)
	ranks := s.ranks(t)
	ranks[0].(*job).be.(*pmi1).conn.say("cmd=abort exitcode=1", time.Second) // ends the fake's connection
	err := ranks[0].Barrier(bounded(t))
	if err == nil || !strings.Contains(err.Error(), "launcher closed the connection") && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v", err)
	}
}

func TestPMI1AbortTellsTheLauncherTheCodeAndExits(t *testing.T) {
	s := newFakePMI(t, 1)
	ranks := s.ranks(t)
	var code int
	ranks[0].(*job).be.(*pmi1).exit = func(c int) { code = c }
	ranks[0].Abort(7, "test")
	ranks[0].Close()
	s.conns.Wait()
	if code != 7 || !slices.Contains(s.seen, "cmd=abort exitcode=7") {
		t.Errorf("exit code %d, server saw %q", code, s.seen)
	}
}

func TestPMI1RefusalsOfTheServerAreErrors(t *testing.T) {
	for _, c := range []struct {
		change func(*fakePMI)
		words  string
	}{
		{func(s *fakePMI) { s.refuse = "init" }, "PMI server refused"},
		{func(s *fakePMI) { s.announce = 256 }, `PMI server takes values of "256" bytes`},
	} {
		s := newFakePMI(t, 1)
		c.change(s)
		_, err := New(bounded(t), Options{Log: quiet, Lookup: env("PMI_FD", strconv.Itoa(s.connect(t)), "PMI_RANK", "0", "PMI_SIZE", "1", "IBCONDUIT_BOOTSTRAP", "pmi1")})
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v, want %q", err, c.words)
		}
	}
	if _, err := New(bounded(t), Options{Log: quiet, Lookup: env("PMI_FD", "9999", "PMI_RANK", "0", "PMI_SIZE", "1", "IBCONDUIT_BOOTSTRAP", "pmi1")}); !errors.Is(err, unix.EBADF) {
		t.Errorf("descriptor that is not open: %v", err)
	}
}

func TestPMI1LocalPlaceIsTheLaunchersWhereItTells(t *testing.T) {
	s := newFakePMI(t, 4)
	b, err := New(bounded(t), Options{Log: quiet, Lookup: env("PMI_FD", strconv.Itoa(s.connect(t)), "PMI_RANK", "3", "PMI_SIZE", "4",
		"MPI_LOCALRANKID", "1", "MPI_LOCALNRANKS", "2")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if r, n, ok := b.Local(); r != 1 || n != 2 || !ok {
		t.Errorf("%d of %d, %v", r, n, ok)
	}
}

// Hydra gives its host's name with the port, and a container without a hosts file does not
// resolve that name.
func TestLauncherOnAnUnresolvableHostIsReached(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	const name = "no-such-host.invalid" // RFC 2606 §2
	c, err := dialLauncher(t.Context(), name+":"+port, name)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := dialLauncher(t.Context(), name+":"+port, "another"); err == nil || !strings.Contains(err.Error(), "/etc/hosts") {
		t.Errorf("another host's name: %v, want the remedy", err)
	}
}

// The time to join is that of the first Exchange, whatever time its context has; no other is bound
// by it. What the text advises is of the launcher that there is.
func TestPMI1TakesNoLongerToJoinThanItMay(t *testing.T) {
	s := newFakePMI(t, 2)
	b, err := New(bounded(t), Options{Log: quiet, Timeout: 50 * time.Millisecond, Lookup: env("PMI_FD", strconv.Itoa(s.connect(t)), "PMI_RANK", "0", "PMI_SIZE", "2",
		"SLURM_STEP_ID", "0")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = b.Exchange(bounded(t), nil)
	if !errors.Is(err, errOwnTime) || !strings.Contains(err.Error(), "srun -K1 ends the job at the first failure: the time to join is over") {
		t.Errorf("%v", err)
	}
}
