package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// local starts ranks as processes of this host.
type local struct {
	cfg     *Config
	numbers []int // of the ranks to start
	paths   map[string]string
	events  chan<- event
	// output makes the writer of a rank's output; coming says whether more can be read already
	output func(number, fd int, coming func() bool) (outputWriter, error)
	rearm  func() // asks again for signals that start ignores for a moment
	places places

	layout   layout // of the descriptors of each rank
	children *children
	echo     *groupEcho // nil: no rank is in our process group
	handover *handover
	deaths   *deaths
	kills    *memoryKills
	ended    *endedList

	started  []*child
	closers  []func()
	shutting sync.Once
}

// newLocal makes the shared parts of this host's ranks. The layout was made before anything was
// opened.
func newLocal(cfg *Config, l layout, numbers []int, h *handover, events chan<- event) (_ *local, err error) {
	s := &local{cfg: cfg, numbers: numbers, layout: l, events: events, paths: map[string]string{}, handover: h,
		children: newChildren(), kills: watchMemoryKills(sysinfo.Host())}
	for _, n := range numbers {
		path := cfg.program(n).Path
		if s.paths[path] != "" {
			continue
		}
		if s.paths[path], err = lookPath(path); err != nil {
			return nil, &StartError{Rank: n, Path: path, Err: err}
		}
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err = h.open(); err != nil {
		return nil, err
	}
	s.closing(h.remove)
	if cfg.Adopt {
		s.children.spare()
		if err = adopt(); err != nil {
			return nil, err
		}
		s.closing(func() { s.children.endOrphans(anyProcess) })
		s.closing(s.children.reapOrphans())
	}
	if cfg.Guard {
		g, err := startGuard(h, s.children)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("launch: guard: %w", err)
		}
		if err != nil { // no /proc: it would find nothing to kill
			cfg.Report(fmt.Sprintf("no guard: what the ranks start may outlive this process if it is killed: %v", err))
		} else {
			s.closing(g.dismiss)
		}
	}
	if s.deaths, err = watchDeaths(); err != nil {
		return nil, err
	}
	s.closing(s.deaths.close)
	go s.deaths.watch()
	s.ended = newEndedList()
	s.closing(s.ended.close)
	if s.places, err = findPlaces(cfg.Bind, len(numbers)); err != nil {
		return nil, err
	}
	return s, nil
}

// lookPath finds a program as a shell does: PATH may have relative directories too, or not be set.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if _, set := os.LookupEnv("PATH"); !set && err != nil && name == filepath.Base(name) {
		for _, dir := range []string{"/bin/", "/usr/bin/"} { // as execvp(3)
			if found, err := exec.LookPath(dir + name); err == nil {
				return found, nil
			}
		}
	}
	if errors.Is(err, exec.ErrDot) {
		path, err = filepath.Abs(path)
	}
	return path, err
}

func (s *local) closing(f func()) { s.closers = append(s.closers, f) }

func (s *local) close() {
	s.shutting.Do(func() {
		for _, k := range s.started {
			k.closePipes()
		}
		for _, f := range slices.Backward(s.closers) {
			f()
		}
	})
}

// shareTerminal leaves rank 0 in our process group where there is a terminal.
func (s *local) shareTerminal(rearm func()) (err error) {
	if !hasTerminal(s.cfg.Stdin) {
		return nil
	}
	if s.echo, err = startEcho(s.children); err != nil {
		return fmt.Errorf("launch: echo of signals: %w", err)
	}
	s.closing(s.echo.end)
	s.rearm = rearm
	return nil
}

// start starts all ranks from one thread that lives until they have ended:
// PR_SET_PDEATHSIG is about the parent's thread, not of its process
// (prctl(2)), and Go ends threads as it likes.
func (s *local) start(context.Context) (ranks []*rank, err error) {
	begun := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err = s.startAll()
		for _, c := range s.started {
			c.take() // not before: a terminal that refuses it stops whoever of our group is being started
			ranks = append(ranks, &rank{number: c.number, process: c})
		}
		all := ranks
		close(begun)
		var orders atomic.Int64
		var gone sync.WaitGroup
		for i, c := range s.started {
			gone.Add(1)
			go func() {
				all[i].order = c.wait(&orders, s.children)
				gone.Done()
				s.events <- event{rank: all[i]}
				c.drain()
				s.events <- event{all[i], true}
			}()
		}
		gone.Wait()
	}()
	<-begun
	if err == nil {
		s.handover.close()
	}
	return ranks, err
}

// startAll starts rank 0 last where it has the terminal: as soon as it runs it may read that, and
// stop with our whole group.
func (s *local) startAll() error {
	defer s.places.keepAffinity()()
	failed := func(number int, err error) error {
		if errors.As(err, new(*outputError)) {
			return fmt.Errorf("launch: %w", err)
		}
		return &StartError{Rank: number, Path: s.cfg.program(number).Path, Err: err}
	}
	start := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := s.places.take(i); err != nil {
				return failed(s.numbers[i], err)
			}
			c, err := s.startChild(s.numbers[i])
			if err != nil {
				return failed(s.numbers[i], err)
			}
			s.started = append(s.started, c)
			if s.cfg.Placement {
				s.cfg.Report(fmt.Sprintf("rank %d (%s): processors %s", c.number, c.where(), affinity(c.cmd.Process.Pid)))
			}
		}
		return nil
	}
	if s.echo == nil {
		return start(0, len(s.numbers))
	}
	signal.Ignore(ignoredByOthers...)
	err := start(1, len(s.numbers))
	s.rearm()
	if err != nil {
		return err
	}
	s.echo.forget()
	return start(0, 1)
}

func (s *local) announce(k *rank) { s.ended.add(k.number, k.how()) }
func (s *local) pause()           {}
func (s *local) resume()          {}
func (s *local) abandon()         {} // the kernel ends what SIGKILL reached
