package launch

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// onceTime: a signal that ends, and comes again within this time, is one still. timeout(1) signals
// its child and then its group, and wrappers hand on what their group has received too.
const onceTime = 200 * time.Millisecond

// forward hands on a signal; the second SIGINT is for a job that ignores the
// first.
func (r *run) forward(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if sig == syscall.SIGINT || sig == syscall.SIGTERM {
		if time.Since(r.asked[sig]) < onceTime {
			return
		}
		r.asked[sig] = time.Now()
	}
	if sig == syscall.SIGINT {
		if r.ints++; r.ints > 1 {
			r.cfg.Report("second interrupt: killing all ranks")
			r.signal(syscall.SIGKILL)
			return
		}
	}
	r.pass(sig)
}

func (r *run) signal(s syscall.Signal) {
	for _, k := range r.ranks {
		k.signal(s)
	}
}

// stopping are the signals by which a terminal, or its user, stops a job.
var stopping = []os.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}

// stopSignals are the ones that were not ignored when this process began, and SIGCONT.
func stopSignals() []os.Signal {
	var ignored uint64
	status, _ := os.ReadFile("/proc/self/status")
	if _, rest, ok := strings.Cut(string(status), "\nSigIgn:\t"); ok {
		mask, _, _ := strings.Cut(rest, "\n")
		ignored, _ = strconv.ParseUint(mask, 16, 64)
	}
	all := []os.Signal{syscall.SIGCONT}
	for _, s := range stopping {
		if ignored>>(s.(syscall.Signal)-1)&1 == 0 {
			all = append(all, s)
		}
	}
	return all
}

// pass hands a signal that this process received to all ranks.
func (r *run) pass(s syscall.Signal) {
	for _, k := range r.ranks {
		if !k.grouped() {
			k.signal(s)
		} else {
			go func() {
				if !k.shares(s) {
					k.signal(s)
				}
			}()
		}
	}
}

// stopOrContinue is for signals of job control.
func (r *run) stopOrContinue(s syscall.Signal) {
	if s == syscall.SIGCONT || tooLate(s) {
		r.starter.resume()
		r.signal(syscall.SIGCONT)
		return
	}
	if !r.abandoned() {
		r.stop(s)
	}
}

// tooLate: the terminal, which refused a read or write, is ours by now. The signal is left from a
// write that was refused again and again until this process stopped; or fg has come before the
// stop, and then the shell continues no process, rank 0 neither.
func tooLate(s syscall.Signal) bool { return s != syscall.SIGTSTP && Foreground() }

// abandoned: this process has a terminal, and there is no shell that could continue what that
// stops, as where ibrun is all that ssh -t, a window or a container runs. No process of the group
// has a parent in another group of the session: the kernel does not stop such a group either.
func (r *run) abandoned() bool {
	ours, all := syscall.Getpgrp(), processes()
	if len(all) == 0 || !hasTerminal(r.cfg.Stdin) {
		return false
	}
	byPid := map[int]procStat{}
	for _, p := range all {
		byPid[p.pid] = p
	}
	for _, p := range all {
		if parent, ok := byPid[p.parent]; ok && p.group == ours && parent.group != ours && parent.session == p.session {
			return false
		}
	}
	return true
}

// stop stops all ranks, as the signal would, and then this process; it goes on when that is
// continued. The shell learns of the stop from this process. A shell that continues it before it
// has stopped knows of no stop to come: then only the ranks are continued. A rank of our group may
// have been stopped already, and continued again by what came before this signal; a second stop
// adds nothing to the first, and what continues the job discards it.
func (r *run) stop(s syscall.Signal) {
	r.signal(syscall.SIGTSTP)
	r.starter.pause()
	for {
		select {
		case next := <-r.stops:
			switch next {
			case syscall.SIGCONT:
				r.stopOrContinue(syscall.SIGCONT)
				return
			case syscall.SIGTSTP:
				s = syscall.SIGTSTP
			}
		default:
			if tooLate(s) {
				r.stopOrContinue(syscall.SIGCONT)
				return
			}
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			return
		}
	}
}
