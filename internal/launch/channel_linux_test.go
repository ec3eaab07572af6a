package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"
)

// linked are two channels with each other's ends; the test ends them.
func linked(t *testing.T, silence time.Duration, opened func(*conn)) (a, b *channel, cut func()) {
	t.Helper()
	ra, wa, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	rb, wb, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a, b = newChannel(wb, silence), newChannel(wa, silence)
	a.handle, b.handle = func(frame) {}, func(frame) {}
	b.opened = opened
	a.begin(ra)
	b.begin(rb)
	cut = sync.OnceFunc(func() {
		a.fail(io.EOF)
		b.fail(io.EOF)
		for _, f := range []*os.File{ra, wa, rb, wb} {
			_ = f.Close()
		}
	})
	t.Cleanup(cut)
	return a, b, cut
}

func TestStreamsOfAChannelArriveWhole(t *testing.T) {
	var done sync.WaitGroup
	a, _, _ := linked(t, time.Minute, func(c *conn) {
		done.Go(func() {
			_, _ = io.Copy(c, c) // back to the sender
			_ = c.CloseWrite()
		})
	})
	for i := range 5 {
		done.Go(func() {
			s := a.open(uint32(i))
			text := bytes.Repeat([]byte{byte(i)}, 3*window+i)
			done.Go(func() {
				_, _ = s.Write(text)
				_ = s.CloseWrite()
			})
			if back, err := io.ReadAll(s); err != nil || !bytes.Equal(back, text) {
				t.Errorf("stream %d: %v, %d bytes of %d", i, err, len(back), len(text))
			}
		})
	}
	done.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.conns) > 0 {
		t.Errorf("%d streams are left", len(a.conns))
	}
}

// A stream that nobody takes stops its writer, and no other stream.
func TestAStreamThatNobodyTakesHoldsUpNoOther(t *testing.T) {
	streams := make(chan *conn, 2)
	a, _, cut := linked(t, time.Minute, func(c *conn) { streams <- c })
	full, other := a.open(1), a.open(2)
	stuck := make(chan error, 1)
	sent := make(chan int, 1)
	go func() {
		n, err := full.Write(make([]byte, 2*window))
		sent <- n
		stuck <- err
	}()
	<-streams
	theirs := <-streams
	go func() {
		for range 4 {
			_, _ = other.Write(make([]byte, window))
		}
		_ = other.CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, theirs); n != 4*window || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	select {
	case n := <-sent:
		t.Errorf("%d bytes were sent, %d fit", n, window)
	default:
	}
	cut()
	if n, err := <-sent, <-stuck; n != window || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// One side that does not read, nor write, is lost, unless it said so.
func TestSilenceEndsAChannel(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var sink bytes.Buffer
	c := newChannel(&sink, 300*time.Millisecond)
	c.handle = func(f frame) { c.pause(f.kind != kindResume) }
	c.pause(true)
	c.begin(r)
	select {
	case <-c.done:
		t.Error("a channel that is paused ended")
	case <-time.After(time.Second):
	}
	if _, err := w.Write([]byte{byte(kindResume), 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the channel goes on")
	}
	if !errors.Is(c.cause(), errSilent) {
		t.Errorf("%v", c.cause())
	}
	_ = r.Close()
}

func TestAFrameTooLongIsRefused(t *testing.T) {
	if _, err := readFrame(strings.NewReader("\x01\x00\x00\x00\x00\xff\xff\xff\xff")); err == nil {
		t.Error("a frame of 4 GiB was taken")
	}
	if _, err := readFrame(strings.NewReader("\x01\x00")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

func TestProcessorsAreDividedByTopology(t *testing.T) {
	sys := fstest.MapFS{}
	put := func(name, text string) { sys[name] = &fstest.MapFile{Data: []byte(text + "\n")} }
	for cpu := range 8 { // 4 cores of two threads, two nodes, a third without processors
		put(fmt.Sprintf("cpu/cpu%d/topology/thread_siblings_list", cpu), fmt.Sprintf("%d,%d", cpu%4, cpu%4+4))
	}
	put("node/node0/cpulist", "0-1,4-5")
	put("node/node1/cpulist", "2-3,6-7")
	put("node/node2/cpulist", "")
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, try := range []struct {
		bind  string
		cpus  []int // that this process may use
		ranks int
		want  string
	}{
		{"core", all, 4, "0,4 1,5 2,6 3,7"},
		{"core", all, 2, "0,4 1,5"},
		{"core", []int{1, 4, 5, 6}, 3, "4 1,5 6"},
		{"core", all, 5, "error"},
		{"numa", all, 4, "0-1,4-5 0-1,4-5 2-3,6-7 2-3,6-7"},
		{"numa", all, 3, "0-1,4-5 0-1,4-5 2-3,6-7"},
		{"numa", []int{2, 3}, 2, "2-3 2-3"},
		{"numa", all, 1, "0-1,4-5"},
		{"socket", all, 1, "error"},
	} {
		var ours unix.CPUSet
		for _, cpu := range try.cpus {
			ours.Set(cpu)
		}
		sets, err := divide(sys, try.bind, &ours, try.ranks)
		var parts []string
		for i := range sets {
			parts = append(parts, cpuText(&sets[i]))
		}
		got := strings.Join(parts, " ")
		if err != nil {
			got = "error"
		}
		if got != try.want {
			t.Errorf("%s of %v for %d: %s, want %s; %v", try.bind, try.cpus, try.ranks, got, try.want, err)
		}
	}
	var one unix.CPUSet
	one.Set(3)
	if _, err := divide(sys, "core", &one, 2); err == nil || !strings.Contains(err.Error(), "may use 1 core of ") {
		t.Errorf("%v", err)
	}
	if _, err := divide(fstest.MapFS{}, "numa", new(unix.CPUSet), 1); err == nil || !strings.Contains(err.Error(), "--bind-to none") {
		t.Errorf("%v", err)
	}
}
