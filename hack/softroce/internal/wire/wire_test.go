package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesComeBackAsTheyWereSent(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	if err := errors.Join(w.Write(KindData, 7, []byte{Stderr}, []byte("text")), w.WriteSignal(8, 15)); err != nil {
		t.Fatal(err)
	}
	r := NewReader(&b)
	f, err := r.Read()
	if stream, data := f.Stream(); err != nil || f.Kind != KindData || f.ID != 7 || stream != Stderr || string(data) != "text" {
		t.Fatal(f, err)
	}
	if f, err = r.Read(); err != nil || f.Kind != KindSignal || f.ID != 8 || f.Signal() != 15 {
		t.Fatal(f, err)
	}
	if _, err = r.Read(); err != io.EOF {
		t.Fatal(err)
	}
}

func TestFrameLongerThanTheLimitIsNotSent(t *testing.T) {
	if err := NewWriter(io.Discard).Write(KindData, 1, make([]byte, MaxPayload+1)); err == nil {
		t.Fatal("sent")
	}
}

func FuzzReaderNeverTakesABrokenFrame(f *testing.F) {
	var b bytes.Buffer
	_ = NewWriter(&b).Write(KindCredit, 1, []byte{1, 2, 3, 4, 5})
	f.Add(b.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 3, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		for r := NewReader(bytes.NewReader(in)); ; {
			fr, err := r.Read()
			if err != nil {
				return
			}
			switch fr.Kind {
			case KindData:
				fr.Stream()
			case KindCredit:
				fr.Credit()
			case KindSignal:
				fr.Signal()
			}
		}
	})
}

func TestSenderStopsAtTheWindow(t *testing.T) {
	r, w := io.Pipe()
	s := NewSender(NewWriter(w), 1, Stdout)
	done := make(chan int)
	go func() {
		n, _ := s.Write(make([]byte, Window+1))
		done <- n
	}()
	in, got := NewReader(r), 0
	for got < Window {
		f, err := in.Read()
		if err != nil {
			t.Fatal(err)
		}
		_, data := f.Stream()
		got += len(data)
	}
	select {
	case n := <-done:
		t.Fatalf("%d bytes written without credit", n)
	default:
	}
	s.Grant(1)
	if _, err := in.Read(); err != nil {
		t.Fatal(err)
	}
	if n := <-done; n != Window+1 {
		t.Fatal(n)
	}
}

func TestReceiverRefusesMoreThanTheWindow(t *testing.T) {
	r := NewReceiver(NewWriter(io.Discard), 1, Stdin)
	if err := r.Push(make([]byte, Window)); err != nil {
		t.Fatal(err)
	}
	if err := r.Push([]byte{1}); !errors.Is(err, ErrOverrun) {
		t.Fatal(err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestReceiverReportsAWriterThatFails(t *testing.T) {
	var credits bytes.Buffer
	r := NewReceiver(NewWriter(&credits), 1, Stdout)
	_ = r.Push([]byte("lost"))
	_ = r.Push(nil)
	if err := r.CopyTo(failing{}); err != io.ErrClosedPipe {
		t.Fatal(err)
	}
	if f, err := NewReader(&credits).Read(); err != nil || f.Kind != KindCredit {
		t.Fatal("no credit for what was thrown away:", err)
	}
}
