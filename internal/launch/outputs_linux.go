package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// outputs are where the output of a job's ranks goes.
type outputs struct {
	cfg       *Config
	out, errs *sink
	over      chan struct{} // closed by giveUp
	giveUp    func()        // ends the wait for obstacles

	mu    sync.Mutex
	files []*sink // of Config.Output
}

func newOutputs(cfg *Config) *outputs {
	o := &outputs{cfg: cfg, over: make(chan struct{})}
	o.giveUp = sync.OnceFunc(func() { close(o.over) })
	o.out = &sink{w: cfg.Stdout, name: "standard output", report: cfg.Report, over: o.over}
	o.errs = o.out
	if !same(cfg.Stdout, cfg.Stderr) {
		o.errs = &sink{w: cfg.Stderr, name: "standard error", report: cfg.Report, over: o.over}
	}
	return o
}

// makeDir makes Config.Output, or says why it cannot be used before a rank or a host is named as
// the cause.
func (o *outputs) makeDir() error {
	dir := o.cfg.Output
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o777)
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return fmt.Errorf("launch: the output's directory %s: %w", dir, err)
	}
	return nil
}

// outputError: it is the file that cannot be made, not the rank.
type outputError struct {
	rank int
	err  error
}

func (e *outputError) Error() string {
	return fmt.Sprintf("output of rank %d: %v%s", e.rank, e.err, limits(e.err))
}
func (e *outputError) Unwrap() error { return e.err }

// createOutput makes a file, or empties one, in a directory to which others may write too: a pipe
// of theirs would wait for its reader.
func createOutput(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o666)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w (a symbolic link is not followed: remove it, or name another directory)", err)
	case errors.Is(err, unix.ENXIO): // of a pipe, or a socket
		return nil, notRegular(name)
	case err != nil:
		return nil, err
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, notRegular(name)
	}
	if err := f.Truncate(0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func notRegular(name string) error {
	return fmt.Errorf("%s is no regular file: remove it, or name another directory", name)
}

// open is where a rank's standard output (1) or standard error (2) goes.
func (o *outputs) open(number, fd int, coming func() bool) (outputWriter, error) {
	if dir := o.cfg.Output; dir != "" {
		f, err := createOutput(filepath.Join(dir, OutputFile(number, o.cfg.N, fd)))
		if err != nil {
			return nil, &outputError{number, err}
		}
		to := &sink{w: f, name: f.Name(), report: o.cfg.Report, over: o.over}
		o.mu.Lock()
		o.files = append(o.files, to)
		o.mu.Unlock()
		return &stream{sink: to, hold: holdTime, coming: coming}, nil
	}
	to := o.out
	if fd == 2 {
		to = o.errs
	}
	return &stream{sink: to, prefix: []byte(o.cfg.Prefix(number)), hold: holdTime, coming: coming}, nil
}

// end finishes the last lines, and closes the files.
func (o *outputs) end() (err error) {
	err = errors.Join(o.out.end(), o.errs.end())
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.files {
		err = errors.Join(err, f.end(), f.w.(*os.File).Close())
	}
	return err
}

// same: two writers that are surely one, as the files of a terminal are, and the files of 2>&1.
// Comparing may panic, as for structs that hold slices; such are taken for different.
func same(a, b any) (equal bool) {
	defer func() { _ = recover() }()
	f, _ := a.(*os.File)
	g, _ := b.(*os.File)
	one, err := f.Stat() // of nil it is an error
	other, err2 := g.Stat()
	return a == b || err == nil && err2 == nil && os.SameFile(one, other)
}
