package main

import (
	"bytes"
	"io"
	"sync"
)

// lineWriter puts a prefix before each line and writes whole lines only, so that several guests can
// share one output.
type lineWriter struct {
	mu     *sync.Mutex
	w      io.Writer
	prefix string
	rest   []byte // of a line not yet ended
}

// maxLine bounds what is held back of a line without an end.
const maxLine = 64 << 10

func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	var out []byte
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 && len(l.rest) < maxLine {
			break
		}
		if i < 0 {
			out = append(append(append(out, l.prefix...), l.rest...), '\n')
			l.rest = nil
			break
		}
		out = append(append(out, l.prefix...), l.rest[:i+1]...)
		l.rest = l.rest[i+1:]
	}
	if len(out) == 0 {
		return len(p), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (l *lineWriter) flush() {
	if len(l.rest) > 0 {
		_, _ = l.Write([]byte{'\n'}) // the last words of a command; an error was reported for its earlier ones
	}
}
