package mux

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// linked are two channels with each other's ends; the test ends them.
func linked(t *testing.T, silence time.Duration, opened func(*Stream)) (a, b *Channel, cut func()) {
	t.Helper()
	ra, wa, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	rb, wb, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a, b = New(wb, silence), New(wa, silence)
	a.Handle, b.Handle = func(Frame) {}, func(Frame) {}
	b.Opened = opened
	a.Begin(ra)
	b.Begin(rb)
	cut = sync.OnceFunc(func() {
		a.Fail(io.EOF)
		b.Fail(io.EOF)
		for _, f := range []*os.File{ra, wa, rb, wb} {
			_ = f.Close()
		}
	})
	t.Cleanup(cut)
	return a, b, cut
}

func TestStreamsOfAChannelArriveWhole(t *testing.T) {
	var done sync.WaitGroup
	a, _, _ := linked(t, time.Minute, func(c *Stream) {
		done.Go(func() {
			_, _ = io.Copy(c, c) // back to the sender
			_ = c.CloseWrite()
		})
	})
	for i := range 5 {
		done.Go(func() {
			s := a.Open(uint32(i))
			text := bytes.Repeat([]byte{byte(i)}, 3*Window+i)
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
	if len(a.streams) > 0 {
		t.Errorf("%d streams are left", len(a.streams))
	}
}

// A stream that nobody takes stops its writer, and no other stream.
func TestAStreamThatNobodyTakesHoldsUpNoOther(t *testing.T) {
	streams := make(chan *Stream, 2)
	a, _, cut := linked(t, time.Minute, func(c *Stream) { streams <- c })
	full, other := a.Open(1), a.Open(2)
	stuck := make(chan error, 1)
	sent := make(chan int, 1)
	go func() {
		n, err := full.Write(make([]byte, 2*Window))
		sent <- n
		stuck <- err
	}()
	<-streams
	theirs := <-streams
	go func() {
		for range 4 {
			_, _ = other.Write(make([]byte, Window))
		}
		_ = other.CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, theirs); n != 4*Window || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	select {
	case n := <-sent:
		t.Errorf("%d bytes were sent, %d fit", n, Window)
	default:
	}
	cut()
	if n, err := <-sent, <-stuck; n != Window || !errors.Is(err, io.EOF) {
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
	c := New(&sink, 300*time.Millisecond)
	c.Handle = func(f Frame) { c.Pause(f.Kind != First) }
	c.Pause(true)
	c.Begin(r)
	select {
	case <-c.done:
		t.Error("a channel that is paused ended")
	case <-time.After(time.Second):
	}
	if _, err := w.Write([]byte{byte(First), 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the channel goes on")
	}
	if !errors.Is(c.Cause(), ErrSilent) {
		t.Errorf("%v", c.Cause())
	}
	_ = r.Close()
}

func TestAFrameTooLongIsRefused(t *testing.T) {
	if _, err := ReadFrame(strings.NewReader("\x01\x00\x00\x00\x00\xff\xff\xff\xff")); err == nil {
		t.Error("a frame of 4 GiB was taken")
	}
	if _, err := ReadFrame(strings.NewReader("\x01\x00")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

// One side that sends more than the window is no longer heard.
func TestMoreThanTheWindowEndsAChannel(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	c := New(io.Discard, 0)
	c.Stream(1)
	c.Begin(r)
	go func() {
		frame := append([]byte{byte(data), 1, 0, 0, 0, 0, Part >> 8, 0, 0}, make([]byte, Part)...)
		_, _ = w.Write(bytes.Repeat(frame, Window/Part+1))
	}()
	<-c.Done()
	if !errors.Is(c.Cause(), errOverrun) {
		t.Errorf("%v", c.Cause())
	}
}
