package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// reportEvery is how often progress is told where it cannot be overwritten.
const reportEvery = 10 * time.Second

// terminal is where progress goes: lines always; a live line that is overwritten on a terminal, and
// elsewhere becomes a line every 10 seconds.
type terminal struct {
	f        *os.File
	quiet    bool
	watched  bool
	maxWidth int

	mu     sync.Mutex
	dirty  bool
	latest string
	moving bool // the live line has the time
	begun  time.Time
	every  time.Duration
	told   *time.Timer // of tick
}

func newTerminal(f *os.File, quiet bool) *terminal {
	t := &terminal{f: f, quiet: quiet, watched: term.IsTerminal(int(f.Fd())), maxWidth: 79, begun: time.Now()}
	if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 1 {
		t.maxWidth = w - 1
	}
	if !t.watched && !quiet {
		t.every, t.told = reportEvery, time.AfterFunc(reportEvery, t.tick)
	}
	return t
}

// tick draws the live line again on a terminal, and elsewhere prints what it would show.
func (t *terminal) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told == nil {
		return // it has ended
	}
	switch {
	case t.latest == "":
	case t.watched:
		t.show()
	default:
		fmt.Fprintf(t.f, "ibbench: after %v: %s\n", time.Since(t.begun).Round(time.Second), t.latest)
	}
	t.told.Reset(t.every)
}

// end tells nothing more.
func (t *terminal) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wipe()
	if t.told != nil {
		t.told.Stop()
		t.told = nil
	}
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
	if t.quiet {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = text
	if t.watched {
		t.show()
	}
}

func (t *terminal) show() {
	text := t.latest
	if t.moving {
		text = fmt.Sprintf("%6.1f s  %s", time.Since(t.begun).Seconds(), text)
	}
	fmt.Fprintf(t.f, "\r\x1b[K%.*s", t.maxWidth, text)
	t.dirty = true
}

// moveEvery is how often a line that moves is drawn.
const moveEvery = 200 * time.Millisecond

// move draws the live line again and again, with the time, on a terminal.
func (t *terminal) move() {
	if t.quiet || !t.watched {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moving = true
	t.every, t.told = moveEvery, time.AfterFunc(moveEvery, t.tick)
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
