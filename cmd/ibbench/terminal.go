package main

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/term"
)

// terminal is where progress goes: lines always, and on a terminal a live line that is overwritten.
type terminal struct {
	f        *os.File
	quiet    bool
	watched  bool
	maxWidth int

	mu    sync.Mutex
	dirty bool
}

func newTerminal(f *os.File, quiet bool) *terminal {
	t := &terminal{f: f, quiet: quiet, watched: term.IsTerminal(int(f.Fd())), maxWidth: 79}
	if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 1 {
		t.maxWidth = w - 1
	}
	return t
}

// line prints a line that stays.
func (t *terminal) line(format string, args ...any) {
	if t.quiet {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wipe()
	fmt.Fprintf(t.f, "ibbench: "+format+"\n", args...)
}

// live replaces the live line.
func (t *terminal) live(text string) {
	if t.quiet || !t.watched {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.f, "\r\x1b[K%.*s", t.maxWidth, text)
	t.dirty = true
}

// clear removes the live line.
func (t *terminal) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wipe()
}

func (t *terminal) wipe() {
	if t.dirty {
		fmt.Fprint(t.f, "\r\x1b[K")
		t.dirty = false
	}
}
