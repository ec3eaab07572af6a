package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
)

func TestLinesStayWholeHoweverTheyArrive(t *testing.T) {
	var got bytes.Buffer
	k := &sink{w: &got}
	a, b := &stream{sink: k, prefix: []byte("[a] ")}, &stream{sink: k, prefix: []byte("[b] ")}
	a.take([]byte("first half, "))
	b.take([]byte("b1\nb2"))
	a.take([]byte("second half\n\na3"))
	b.flush()
	a.flush()
	if err := k.end(); err != nil {
		t.Fatal(err)
	}
	want := "[b] b1\n[a] first half, second half\n[a] \n[b] b2\n[a] a3\n"
	if got.String() != want {
		t.Errorf("%q, want %q", got.String(), want)
	}
}

func TestWithoutPrefixARanksBytesAreUnchanged(t *testing.T) {
	var got bytes.Buffer
	k := &sink{w: &got}
	s := &stream{sink: k}
	text := "a\n\r\x00b\n" + strings.Repeat("x", 3*maxHeld) + "\nno end"
	for p := []byte(text); len(p) > 0; {
		n := min(len(p), 1000)
		s.take(p[:n])
		p = p[n:]
	}
	s.flush()
	if err := k.end(); err != nil || got.String() != text {
		t.Errorf("%d bytes became %d, %v", len(text), got.Len(), err)
	}
}

func TestALineAboveTheLimitIsPassedOn(t *testing.T) {
	var got bytes.Buffer
	k := &sink{w: &got}
	a, b := &stream{sink: k, prefix: []byte("[a] ")}, &stream{sink: k, prefix: []byte("[b] ")}
	long := strings.Repeat("x", maxHeld+1)
	a.take([]byte(long))
	if got.Len() == 0 || len(a.held) > 0 {
		t.Fatalf("%d bytes are kept back, %d were handed on", len(a.held), got.Len())
	}
	a.take([]byte(long + "+\n")) // no other rank wrote between
	a.take([]byte(long))
	b.take([]byte("b\n"))
	a.take([]byte("rest\n"))
	if err := k.end(); err != nil {
		t.Fatal(err)
	}
	want := "[a] " + long + long + "+\n[a] " + long + "\n[b] b\n[a] rest\n"
	if got.String() != want {
		t.Errorf("got %d bytes, want %d", got.Len(), len(want))
	}
}

func TestManyStreamsNeverMixWithinALine(t *testing.T) {
	var got bytes.Buffer
	k := &sink{w: &got}
	const streams, lines = 64, 200
	var wg sync.WaitGroup
	for s := range streams {
		r, w := io.Pipe()
		line := fmt.Sprintf("%02d:%s\n", s, strings.Repeat(string(rune('A'+s%26)), 10+s))
		wg.Go(func() {
			st := &stream{sink: k}
			takeAll(st, r)
		})
		wg.Go(func() {
			all := []byte(strings.Repeat(line, lines))
			for i := 7; len(all) > 0; i++ { // pieces that end anywhere
				n := min(len(all), 1+i*13%97)
				_, _ = w.Write(all[:n])
				all = all[n:]
			}
			w.Close()
		})
	}
	wg.Wait()
	counts := map[string]int{}
	for line := range strings.Lines(got.String()) {
		counts[line]++
	}
	if len(counts) != streams {
		t.Errorf("%d different lines, want %d", len(counts), streams)
	}
	for line, n := range counts {
		if n != lines {
			t.Errorf("%q came %d times", line, n)
		}
	}
}

type brokenWriter struct{ n int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	w.n++
	return 0, errors.New("disk full")
}

// A rank must not block because its output has nowhere to go.
func TestAFailedDestinationIsReportedOnce(t *testing.T) {
	w := &brokenWriter{}
	k := &sink{w: w}
	s := &stream{sink: k}
	takeAll(s, strings.NewReader(strings.Repeat("line\n", 100_000)))
	if err := k.end(); err == nil || err.Error() != "disk full" {
		t.Errorf("%v", err)
	}
	if w.n != 1 {
		t.Errorf("written %d times to a broken destination", w.n)
	}
}
