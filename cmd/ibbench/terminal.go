package main

import (
	"fmt"
	"os"

	"golang.org/x/term"
)

// terminal is where progress goes: lines always, a live line that is
// overwritten only on a terminal.
type terminal struct {
	f        *os.File
	quiet    bool
	watched  bool
	dirty    bool
	maxWidth int
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
	t.clear()
	fmt.Fprintf(t.f, "ibbench: "+format+"\n", args...)
}

// live replaces the live line.
func (t *terminal) live(text string) {
	if t.quiet || !t.watched {
		return
	}
	fmt.Fprintf(t.f, "\r\x1b[K%.*s", t.maxWidth, text)
	t.dirty = true
}

// clear removes the live line.
func (t *terminal) clear() {
	if t.dirty {
		fmt.Fprint(t.f, "\r\x1b[K")
		t.dirty = false
	}
}
