package lan

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxFrame = 9216 // above every MTU in use
	// queueLen is a link's buffer in frames. A sender in rxe has at most 128 unacknowledged packets
	// a queue pair (RXE_MAX_UNACKED_PSNS, drivers/infiniband/sw/rxe/rxe_param.h).
	queueLen = 1024
	// sockBuf lets a burst pass while this process waits for a core; the kernel charges about twice
	// a frame's size.
	sockBuf = 8 << 20
)

// Switch joins n ports.
type Switch struct {
	ports []*net.UnixConn // our ends
	peers []*os.File      // the guests' ends, until taken
	links [][]*link       // [from][to]; nil on the diagonal
	wg    sync.WaitGroup
	stop  chan struct{}
}

// Stats counts the frames of one direction of a link.
type Stats struct {
	Sent     uint64 // handed to the receiver
	Dropped  uint64 // by the loss asked for
	Cut      uint64 // while the link was cut
	Overflow uint64 // the queue was full or the receiver gone
}

// New makes a switch. seed determines which frames a lossy link drops.
func New(n int, seed uint64) (*Switch, error) {
	s := &Switch{stop: make(chan struct{})}
	for range n {
		if err := s.addPort(); err != nil {
			s.Close()
			return nil, err
		}
	}
	s.links = make([][]*link, n)
	for from := range n {
		s.links[from] = make([]*link, n)
		for to := range n {
			if from != to {
				l := &link{to: s.ports[to], queue: make(chan frame, queueLen), draw: rand.New(rand.NewPCG(seed, uint64(from*n+to)))}
				s.links[from][to] = l
				s.wg.Go(func() { l.deliver(s.stop) })
			}
		}
	}
	for i := range s.ports {
		s.wg.Go(func() { s.forward(i) })
	}
	return s, nil
}

func (s *Switch) addPort() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("lan: socketpair: %w", err)
	}
	for _, fd := range fds {
		// Beyond net.core.wmem_max only root may; less is slower, not wrong.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sockBuf) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sockBuf)
		}
	}
	ours := os.NewFile(uintptr(fds[0]), "lan")
	defer ours.Close() // FileConn duplicates
	s.peers = append(s.peers, os.NewFile(uintptr(fds[1]), "nic"))
	conn, err := net.FileConn(ours)
	if err != nil {
		return fmt.Errorf("lan: %w", err)
	}
	s.ports = append(s.ports, conn.(*net.UnixConn))
	return nil
}

// Port returns the guest's end of port i, once; it is the caller's to close.
func (s *Switch) Port(i int) *os.File {
	f := s.peers[i]
	s.peers[i] = nil
	return f
}

// MAC is the address of the card at port i; the switch knows the addresses and need not learn them.
func MAC(i int) net.HardwareAddr { return net.HardwareAddr{0x52, 0x54, 0, 0, 0, byte(i + 1)} }

// portOf returns the port of a destination, or -1 for all: broadcast, multicast.
func (s *Switch) portOf(dst []byte) (int, bool) {
	if dst[0]&1 != 0 {
		return -1, true
	}
	i := int(dst[5]) - 1
	if i < 0 || i >= len(s.ports) || string(dst[:6]) != string(MAC(i)) {
		return 0, false
	}
	return i, true
}

// forward moves what guest i sends to the links' queues.
func (s *Switch) forward(i int) {
	buf := make([]byte, maxFrame)
	for {
		n, err := s.ports[i].Read(buf)
		if err != nil {
			return // closed, or the guest has gone
		}
		if n < 14 {
			continue // shorter than an Ethernet header
		}
		to, known := s.portOf(buf)
		if !known || to == i {
			continue
		}
		data := append([]byte(nil), buf[:n]...)
		for j, l := range s.links[i] {
			if l != nil && (to < 0 || to == j) {
				l.offer(data)
			}
		}
	}
}

// Close stops the switch and closes every end that was not taken.
func (s *Switch) Close() {
	select {
	case <-s.stop:
		return
	default:
	}
	close(s.stop)
	for _, p := range s.ports {
		p.Close()
	}
	for _, f := range s.peers {
		if f != nil {
			f.Close()
		}
	}
	s.wg.Wait()
}

// Faults of one link, both directions.
type Faults struct {
	Cut   bool
	Loss  float64       // fraction of frames, 0 to 1
	Delay time.Duration // added to each frame, one way
}

// Set replaces the faults of the link between a and b.
func (s *Switch) Set(a, b int, change func(*Faults)) error {
	if a == b || a < 0 || b < 0 || a >= len(s.ports) || b >= len(s.ports) {
		return fmt.Errorf("lan: no link between %d and %d among %d hosts", a, b, len(s.ports))
	}
	s.links[a][b].set(change)
	s.links[b][a].set(change)
	return nil
}

// Stats returns the counters of the direction from a to b, and the link's faults.
func (s *Switch) Stats(a, b int) (Stats, Faults) {
	l := s.links[a][b]
	if l == nil {
		return Stats{}, Faults{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats, l.faults
}
