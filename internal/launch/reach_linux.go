package launch

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// sshAtOnce is how many connections are made at a time, as many as Open MPI's mpirun makes
	// (plm_rsh_num_concurrent).
	sshAtOnce = 128
	// jumpAtOnce is how many are made at a time through another host, and again. An sshd drops some
	// of those above 10 that it has not let in yet (MaxStartups of sshd_config(5), 10:30:100).
	jumpAtOnce = 8
	// jumpTime is how long ssh may take to say how it would connect.
	jumpTime = 2 * time.Second
)

// pauses before further tries, where ssh's connection ended before an agent answered: a host, or
// the one on the way to it, may have had too many at a time.
var pauses = []time.Duration{500 * time.Millisecond, 2 * time.Second}

// definite are words of ssh about what no further try changes.
var definite = []string{"Permission denied", "Host key verification failed", "Name or service not known"}

// turns bound how many hosts are being reached at a time.
type turns struct{ first, again chan struct{} }

func (h *hosts) newTurns(ctx context.Context) turns {
	n := sshAtOnce
	if h.jumps(ctx) {
		n = jumpAtOnce
	}
	return turns{first: make(chan struct{}, n), again: make(chan struct{}, jumpAtOnce)}
}

// take waits for a turn. One that comes again waits behind few others, whatever ssh has said of its
// way. done gives the turn back.
func (t turns) take(a *agent, try int) (done func()) {
	all := []chan struct{}{t.first}
	if try > 0 {
		all = []chan struct{}{t.again, t.first}
	}
	var taken []chan struct{}
	for _, c := range all {
		select {
		case c <- struct{}{}:
			taken = append(taken, c)
		case <-a.stop:
		}
	}
	return func() {
		for _, c := range taken {
			<-c
		}
	}
}

// jumps reports whether ssh takes the way through another host to the first one, by which the
// others are judged: a further try is for hosts reached otherwise. A program that is no OpenSSH,
// and knows no -G, starts an agent that has nothing to do.
func (h *hosts) jumps(ctx context.Context) bool {
	i := slices.IndexFunc(h.all, func(a *agent) bool { return !OnThisHost(a.name) })
	if i < 0 || len(h.all) <= jumpAtOnce {
		return false
	}
	plain, err := h.all[i].command("-G")
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, jumpTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, plain.Args[0], plain.Args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	if startProgram(cmd, func(int) bool { return false }) != nil {
		return false
	}
	_ = cmd.Wait()
	for line := range strings.Lines(out.String()) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if (key == "proxyjump" || key == "proxycommand") && value != "none" {
			return true
		}
	}
	return false
}

// reach connects with an agent, in further tries where these may help.
func (h *hosts) reach(a *agent, t turns) error {
	for try := 0; ; try++ {
		done := t.take(a, try)
		begun := time.Now()
		refused, err := a.connect()
		done()
		refused = refused && time.Since(begun) < connectTime/3 && !a.words.have(definite)
		if refused && try < len(pauses) && a.pause(pauses[try]) {
			a.words.drop()
			continue
		}
		a.words.pass()
		switch {
		case err == nil:
			return nil
		case refused && len(h.all) > 1:
			err = fmt.Errorf("%w, %s before an agent answered; where it works alone, "+
				"sshd there or of a jump host refuses so many at a time: "+
				"raise MaxStartups of its sshd_config", err, times(try+1))
		}
		return &HostError{Host: a.name, Err: err}
	}
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// pause waits, a random part longer so that not all come at once; false once the agent is cut off.
func (a *agent) pause(d time.Duration) bool {
	select {
	case <-time.After(d + rand.N(d/2)):
		return true
	case <-a.stop:
		return false
	}
}

// words are what ssh writes to its standard error, kept back while another try may follow.
type words struct {
	to outputWriter

	mu    sync.Mutex
	kept  []byte
	state wordsState
}

type wordsState int

const (
	keeping wordsState = iota
	passing
	dropping
)

func (w *words) take(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.state {
	case keeping:
		if w.kept = append(w.kept, p...); len(w.kept) > bannerMost {
			w.passLocked()
		}
	case passing:
		w.to.take(p)
	}
}

func (w *words) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == passing {
		w.to.flush()
	}
}

// have reports whether one of the texts stands in the kept output.
func (w *words) have(texts []string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(texts, func(t string) bool { return bytes.Contains(w.kept, []byte(t)) })
}

// pass hands on the kept output, and what comes.
func (w *words) pass() {
	if w != nil { // ssh was started
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.state == keeping {
			w.passLocked()
		}
	}
}

func (w *words) passLocked() {
	w.state = passing
	w.to.take(w.kept)
	w.to.flush()
	w.kept = nil
}

func (w *words) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == keeping {
		w.state, w.kept = dropping, nil
	}
}
