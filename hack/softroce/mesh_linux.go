package softroce

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// sockBuf lets a burst of frames pass while the emulator of the receiver waits for a core; the
// kernel charges about twice a frame's size.
const sockBuf = 8 << 20

// newMesh joins n guests by a pair of datagram sockets each two: a frame is a datagram. The ends of
// guest i are mesh[i], in the order of the other guests.
func newMesh(n int) (mesh [][]*os.File, err error) {
	mesh = make([][]*os.File, n)
	for a := range n {
		for b := range a {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				closeMesh(mesh)
				return nil, fmt.Errorf("softroce: socketpair: %w", err)
			}
			for i, host := range []int{a, b} {
				// Beyond net.core.wmem_max only root may; less is slower, not wrong.
				if unix.SetsockoptInt(fds[i], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sockBuf) != nil {
					_ = unix.SetsockoptInt(fds[i], unix.SOL_SOCKET, unix.SO_SNDBUF, sockBuf)
				}
				mesh[host] = append(mesh[host], os.NewFile(uintptr(fds[i]), "card"))
			}
		}
	}
	return mesh, nil
}

func closeMesh(mesh [][]*os.File) {
	for _, cards := range mesh {
		for _, f := range cards {
			_ = f.Close() // the emulator has its own
		}
	}
}

// ports are the cards of guest i. One that has a single link sees it as eth0.
func ports(i, hosts int) (list []wire.Port) {
	for j := range hosts {
		if j == i {
			continue
		}
		p := wire.Port{Name: fmt.Sprintf("vm%d", j), MAC: fmt.Sprintf("52:54:00:00:%02x:%02x", i+1, j+1)}
		if hosts == 2 {
			p.Name = "eth0"
		}
		list = append(list, p)
	}
	return list
}
