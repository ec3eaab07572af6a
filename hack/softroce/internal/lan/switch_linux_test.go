package lan

import (
	"net"
	"testing"
	"time"
)

// join returns a switch and the guests' ends.
func join(t *testing.T, n int) (*Switch, []net.Conn) {
	t.Helper()
	s, err := New(n, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	var ends []net.Conn
	for i := range n {
		f := s.Port(i)
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends = append(ends, c)
	}
	return s, ends
}

func ethernet(to, from net.HardwareAddr, tag byte) []byte {
	return append(append(append([]byte{}, to...), from...), 0x88, 0xb5, tag)
}

func receive(t *testing.T, c net.Conn) byte {
	t.Helper()
	b := make([]byte, 64)
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[n-1]
}

func send(t *testing.T, c net.Conn, frame []byte) {
	t.Helper()
	if _, err := c.Write(frame); err != nil {
		t.Fatal(err)
	}
}

var broadcast = net.HardwareAddr{255, 255, 255, 255, 255, 255}

func TestFramesReachTheirDestinationOnly(t *testing.T) {
	s, ends := join(t, 3)
	send(t, ends[0], ethernet(MAC(2), MAC(0), 1))
	send(t, ends[0], ethernet(MAC(9), MAC(0), 2)) // no port's
	send(t, ends[0], []byte("short"))
	send(t, ends[0], ethernet(broadcast, MAC(0), 3))
	if a, b := receive(t, ends[2]), receive(t, ends[2]); a != 1 || b != 3 {
		t.Error(a, b)
	}
	if got := receive(t, ends[1]); got != 3 {
		t.Error(got)
	}
	if st, _ := s.Stats(0, 1); st.Sent > 1 {
		t.Errorf("%+v", st)
	}
}

func TestCutLinkCarriesNothingAndOthersGoOn(t *testing.T) {
	s, ends := join(t, 3)
	if err := s.Set(0, 1, func(f *Faults) { f.Cut = true }); err != nil {
		t.Fatal(err)
	}
	send(t, ends[0], ethernet(broadcast, MAC(0), 1))
	if got := receive(t, ends[2]); got != 1 {
		t.Error(got)
	}
	if err := s.Set(1, 0, func(f *Faults) { f.Cut = false }); err != nil {
		t.Fatal(err)
	}
	send(t, ends[0], ethernet(MAC(1), MAC(0), 2))
	if got := receive(t, ends[1]); got != 2 {
		t.Error("a frame of before the restoration arrived:", got)
	}
	if st, _ := s.Stats(0, 1); st.Cut != 1 {
		t.Errorf("%+v", st)
	}
}

func TestFramesAreCountedAndLossFollowsTheSeed(t *testing.T) {
	const n = 400
	run := func() Stats {
		s, ends := join(t, 2)
		if err := s.Set(0, 1, func(f *Faults) { f.Loss = 0.25 }); err != nil {
			t.Fatal(err)
		}
		for range n {
			send(t, ends[0], ethernet(MAC(1), MAC(0), 1))
		}
		if err := s.Set(0, 1, func(f *Faults) {}); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			if st, _ := s.Stats(0, 1); st.Sent+st.Dropped+st.Overflow == n {
				return st
			}
			time.Sleep(time.Millisecond)
		}
		t.Fatal("frames are missing from the counters")
		return Stats{}
	}
	a, b := run(), run()
	if a.Dropped != b.Dropped || a.Dropped < 50 || a.Dropped > 150 {
		t.Errorf("%+v, %+v", a, b)
	}
}

func TestDelayedFramesKeepTheirOrder(t *testing.T) {
	s, ends := join(t, 2)
	if err := s.Set(0, 1, func(f *Faults) { f.Delay = 20 * time.Millisecond }); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := range byte(5) {
		send(t, ends[0], ethernet(MAC(1), MAC(0), i))
	}
	for i := range byte(5) {
		if got := receive(t, ends[1]); got != i {
			t.Fatal(got, i)
		}
	}
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Error("not delayed:", took)
	}
}

func TestCloseEndsWithAReceiverThatDoesNotRead(t *testing.T) {
	s, ends := join(t, 2)
	big := append(ethernet(MAC(1), MAC(0), 0), make([]byte, 4000)...)
	for range 3 * queueLen {
		send(t, ends[0], big)
	}
	s.Close()
	s.Close()
}
